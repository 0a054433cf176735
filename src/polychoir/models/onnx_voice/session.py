"""Opens ONNX Runtime sessions the way a server of many threads needs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from polychoir.errors import ModelLoadError
from polychoir.runner.cpu import cpu_device
from polychoir.types import Device

if TYPE_CHECKING:
    import onnxruntime


def open_session(model: Path | bytes, name: str) -> onnxruntime.InferenceSession:
    """A CPU session for many callers at once; `model` is a file or its contents, `name` is for the error.

    One thread per call: plans run side by side, so threads inside a graph would only fight for the cores.
    The arena stays on: it costs tens of MB and gives 8-12 % (measured on the embedded voice, 2 cores).
    Raises ModelLoadError.
    """
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as codes

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only: exporters leave harmless warnings in their graphs
    source = str(model) if isinstance(model, Path) else model
    # The runtime's own errors share no base class but Exception; these are the ones a bad file gives.
    bad_file = (
        codes.Fail,
        codes.InvalidProtobuf,
        codes.InvalidGraph,
        codes.NoSuchFile,
        codes.InvalidArgument,
    )
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except (*bad_file, codes.NotImplemented) as error:
        raise ModelLoadError(f"{name} cannot be loaded by ONNX Runtime: {error}") from error


def device(threads: int) -> Device:
    """What the steps of such sessions run on, so many at a time."""
    import onnxruntime

    return cpu_device("float32", f"{threads} threads", f"onnxruntime {onnxruntime.__version__}")
