"""Triton's interpreter, mended for a newer numpy. Import only where TRITON_INTERPRET is set."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_with_loops(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


def mend_interpreter() -> None:
    """Triton 3.6 makes a loop's bound an int in a way that numpy 2.4 refuses: its scalars have one axis."""
    interpreter._patch_lang_tensor = _patch_with_loops
