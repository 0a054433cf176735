"""polychoir: text to speech for many listeners at once."""

from __future__ import annotations

__version__ = "0.1.0"
