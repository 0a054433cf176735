"""What the processor is called, and how many of its cores are ours."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from polychoir.types import Device

_CPU_INFO = Path("/proc/cpuinfo")


def cores() -> int:
    """Cores this process may use: the number of one-item plans worth having in flight."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name where the platform tells it, else its kind."""
    if _CPU_INFO.is_file():
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def cpu_device(*details: str) -> Device:
    """This machine's processor, as the cost of a step knows it."""
    return Device("cpu", ", ".join((cpu_name(), f"{cores()} cores", *details)))
