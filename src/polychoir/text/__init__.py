"""What a text says and where it may be cut; pure functions of strings that know no model."""

from __future__ import annotations

from polychoir.text.clean import clean, is_speakable
from polychoir.text.scripts import scripts
from polychoir.text.segment import segment

__all__ = ["clean", "is_speakable", "scripts", "segment"]
