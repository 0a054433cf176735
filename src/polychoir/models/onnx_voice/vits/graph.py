"""Asks a VITS graph for one output more: how many frames each item of the batch has.

The graph pads its waveforms to the longest of the batch and keeps to itself where each one ends. The number
is there, as the tensor behind the sequence mask; it has only to be named as an output. An ONNX file is a
protocol buffer, and two encoded messages set end to end are one merged message (protobuf.dev, "Encoding",
Last One Wins), so naming it takes a few bytes at the end of the file and no library beyond the standard one.
Field numbers are those of onnx.proto: ModelProto.graph 7; GraphProto.node 1, output 12; NodeProto.input 1,
output 2, op_type 4; ValueInfoProto.name 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polychoir.errors import ModelLoadError

_PATH = ("Ceil", "ReduceSum", "Clip", "Cast")
"""Durations are rounded up, summed over the phonemes, kept at one frame or more, made integers: in every
export of this family, whatever its tensors are called."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def with_frame_counts(model: bytes) -> tuple[bytes, str]:
    """The model with the frame counts (int64 [batch]) as its last output, and that output's name.

    Raises ModelLoadError for what is no ONNX file, or no VITS graph.
    """
    try:
        name = _frame_counts(list(_nodes(memoryview(model))))
    except (IndexError, UnicodeDecodeError) as error:
        raise ModelLoadError("the file is not an ONNX model, or is cut short") from error
    return model + _field(7, _field(12, _field(1, name.encode()))), name


def _frame_counts(nodes: Sequence[_Node]) -> str:
    """Follow `_PATH` from each node of its first kind; exactly one tensor must be at its end."""
    readers: dict[str, list[_Node]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    found = [node for node in nodes if node.kind == _PATH[0]]
    for kind in _PATH[1:]:
        found = [
            reader for node in found for reader in readers.get(node.outputs[0], ()) if reader.kind == kind
        ]
    names = {node.outputs[0] for node in found}
    if len(names) != 1:
        raise ModelLoadError(
            f"the graph has {len(names)} tensors that look like frame counts: not a VITS voice"
        )
    return names.pop()


def _nodes(model: memoryview) -> Iterator[_Node]:
    for number, graph in _fields(model):
        if number == 7:
            for part, node in _fields(graph):
                if part == 1:
                    yield _node(node)


def _node(data: memoryview) -> _Node:
    words: dict[int, list[str]] = {1: [], 2: [], 4: [""]}
    for number, value in _fields(data):
        if number in words:
            words[number].append(str(value, "utf-8"))
    return _Node(words[4][-1], tuple(words[1]), tuple(words[2]))


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, contents) of each length-delimited field of a message; other fields are stepped over.

    Raises IndexError where the message ends too soon.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise IndexError(at)
            yield number, data[at : at + size]
            at += size
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise IndexError(at)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _field(number: int, contents: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(contents)) + contents


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
