"""What a launch has to know of the card it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Card:
    """multiprocessors: programs that run at once, if each fills one. capability: CUDA's (major, minor)."""

    multiprocessors: int
    capability: tuple[int, int]


INTERPRETER = Card(multiprocessors=4, capability=(9, 0))
"""Triton's interpreter takes everything, one program after the other: few, so that each has some turns."""


@cache
def card(device: torch.device) -> Card:
    if device.type != "cuda":
        return INTERPRETER
    properties = torch.cuda.get_device_properties(device)
    return Card(properties.multi_processor_count, (properties.major, properties.minor))
