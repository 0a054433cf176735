"""The machine: versions and devices, read without loading any of the heavy packages."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from polychoir import __version__
from polychoir.doctor.section import Fact, Section
from polychoir.runner.cpu import cores, cpu_name
from polychoir.types import DeviceKind

PACKAGES = ("numpy", "torch", "triton", "transformers", "onnxruntime", "hibari-tts")
QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
_COLUMNS = 3
ANSWER_S = 10.0
LARGE_MIB = 40_000
"""A guess for a card that was not asked itself: runner/device_class.py knows, once a model is loaded."""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_mib: int
    driver: str


def versions() -> Section:
    facts = [Fact("polychoir", __version__), Fact("python", platform.python_version(), platform.platform())]
    return Section("versions", (*facts, *(Fact(name, _installed(name)) for name in PACKAGES)))


def devices(gpus: tuple[Gpu, ...]) -> Section:
    found = [
        Fact(f"cuda:{number}", gpu.name, f"{gpu.memory_mib} MiB, driver {gpu.driver}")
        for number, gpu in enumerate(gpus)
    ]
    none = Fact("cuda", "none", "as nvidia-smi tells")
    return Section("devices", (Fact("cpu", cpu_name(), f"{cores()} cores"), *(found or [none])))


def find_gpus() -> tuple[Gpu, ...]:
    """What nvidia-smi lists; nothing where it is not installed or does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        done = subprocess.run((command, *QUERY), capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(done.stdout)


def parse_gpus(answer: str) -> tuple[Gpu, ...]:
    """Lines of name, MiB and driver; a card without plain memory figures counts as one of none."""
    lines = [line.rsplit(", ", 2) for line in answer.splitlines()]
    return tuple(
        Gpu(name, int(memory) if memory.isdigit() else 0, driver)
        for name, memory, driver in (parts for parts in lines if len(parts) == _COLUMNS)
    )


def likely_kind(device: str, gpus: tuple[Gpu, ...]) -> DeviceKind:
    """The class of device that a setting will come to."""
    if not gpus or not (device == "auto" or device.startswith("cuda")):
        return "cpu"
    number = int(device.partition(":")[2] or 0)
    gpu = gpus[min(number, len(gpus) - 1)]
    return "large_gpu" if gpu.memory_mib >= LARGE_MIB else "small_gpu"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
