"""Exact length of an mp3: the delay and padding fields of its Info header.

An mp3 holds whole frames; the header (de facto standard, from LAME) says how many samples to drop at each
end. FFmpeg's muxer derives the padding from the last frame alone, so it is up to 46 samples short (1.9 ms at
24 kHz) whenever the padding reaches into the frame before; this sets it from the number of samples.
"""

from __future__ import annotations

_FRAMES_AT = 8
_DELAY_AND_PADDING_AT = 141
"""Two 12-bit numbers: samples to drop at the start (less the decoder's own 529) and at the end (likewise)."""
_CRC_AT = 154
_SEARCHED = 64
"""The header's name sits behind 4 bytes of frame header and 9 to 32 of side information."""


def with_exact_padding(file: bytes, samples: int, frame_size: int) -> bytes:
    """`file` with a padding that makes it `samples` long once decoded; unchanged if it has no Info header.

    Players that follow it are exact from 47 samples on; below, FFmpeg's gives some 20 ms.
    frame_size: samples in one mp3 frame (576 below 32 kHz, else 1,152).
    """
    info = file.find(b"Info", 0, _SEARCHED)
    if info < 0:
        return file
    frames = int.from_bytes(file[info + _FRAMES_AT :][:4], "big")
    at = info + _DELAY_AND_PADDING_AT
    delay = int.from_bytes(file[at : at + 3], "big") >> 12
    padding = frames * frame_size - delay - samples
    head = file[:at] + (delay << 12 | padding).to_bytes(3, "big") + file[at + 3 : info + _CRC_AT]
    return head + _crc16(head).to_bytes(2, "big") + file[len(head) + 2 :]


def _crc16(data: bytes) -> int:
    """CRC-16 as the header's checksum is defined: polynomial 0x8005, bits reflected, from zero."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
