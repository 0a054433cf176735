"""`python -m polychoir` is the command `polychoir`."""

from __future__ import annotations

from polychoir.cli import main

if __name__ == "__main__":
    main()
