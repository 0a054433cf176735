"""How waiting clips are spread over the encoder's graphs, and that each gets its own codes back."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="the codec needs the extra [omnivoice]")

import numpy as np  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from polychoir.models.omnivoice import encoder as encoder_module  # noqa: E402
from polychoir.models.omnivoice.encoder import LAUNCH_FRAMES, SIZES, Launch, launches  # noqa: E402
from polychoir.models.omnivoice.row import FRAME_SAMPLES  # noqa: E402

LONGEST = SIZES[1][-1]


def cost(found: list[Launch]) -> int:
    return sum(LAUNCH_FRAMES + launch.room * launch.size for launch in found)


@given(st.lists(st.integers(1, LONGEST + 50), max_size=20))
def test_every_clip_that_fits_is_in_one_launch_with_room_for_it(frames: list[int]) -> None:
    found = launches(frames)
    taken = sorted(number for launch in found for number in launch.clips)
    assert taken == [number for number, own in enumerate(frames) if own <= LONGEST]
    for launch in found:
        assert launch.size in SIZES[launch.room]
        assert 1 <= len(launch.clips) <= launch.room
        assert max(frames[number] for number in launch.clips) <= launch.size


@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=4))
def test_no_other_way_is_cheaper(frames: list[int]) -> None:
    """Beside every way to deal the clips to at most as many launches."""
    dearest = cost([Launch((number,), 1, LONGEST) for number in range(len(frames))])
    for dealt in product(range(len(frames)), repeat=len(frames)):
        price = 0
        for hand in set(dealt):
            own = [length for length, place in zip(frames, dealt, strict=True) if place == hand]
            fitting = [
                room * size
                for room, sizes in SIZES.items()
                for size in sizes
                if room >= len(own) and size >= max(own)
            ]
            price += LAUNCH_FRAMES + min(fitting) if fitting else dearest
        assert cost(launches(frames)) <= price


@pytest.mark.parametrize(
    ("frames", "shapes"),
    [
        ([], []),
        ([101], [(1, 125)]),
        ([LONGEST + 1], []),
        ([125] * 8, [(4, 125), (4, 125)]),
        ([125] * 3, [(4, 125)]),
        ([30, 375, 60], [(4, 75), (1, 375)]),
    ],
)
def test_a_burst_shares_launches(frames: list[int], shapes: list[tuple[int, int]]) -> None:
    assert [(launch.room, launch.size) for launch in launches(frames)] == shapes


def test_no_launch_is_larger_than_what_its_memory_was_meant_for() -> None:
    assert max(room * size for room, sizes in SIZES.items() for size in sizes) == 1_000


class Loudest:
    """In the place of the padded encoder: the codes of a frame are its clip's loudest sample."""

    def __init__(self, model: object) -> None: ...

    def forward(self, wave: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        assert (frames >= 1).all()
        loudest = wave.amax(-1).to(torch.int64)
        return loudest[:, :, None].expand(-1, 8, wave.shape[-1] // FRAME_SAMPLES)


@pytest.fixture
def graphed(monkeypatch: pytest.MonkeyPatch) -> encoder_module.GraphedEncoder:
    """Without a GPU: nothing is captured, pinned or waited for."""

    class Uncaptured:
        def __init__(self, what: str, forward: object, *others: object) -> None:
            self.run = forward

    class Marked:
        def synchronize(self) -> None: ...

    for name in ("zeros", "ones", "empty"):
        plain = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *shape, pin_memory=False, plain=plain, **rest: plain(*shape, **rest)
        )
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(encoder_module, "mark", lambda stream: Marked())
    monkeypatch.setattr(encoder_module, "CodecGraphs", Uncaptured)
    monkeypatch.setattr(encoder_module, "PaddedEncoder", Loudest)
    return encoder_module.GraphedEncoder(None, torch.device("cpu"), 0.9)


def test_each_clip_gets_its_own_codes_whatever_was_encoded_before(graphed) -> None:
    draw = np.random.default_rng(0)
    for count in (9, 3, 1, 6):
        frames = draw.integers(1, LONGEST + 80, count)
        clips = [np.full(own * FRAME_SAMPLES, number + 1, np.float32) for number, own in enumerate(frames)]
        found = graphed.encode(clips)
        assert sorted(found) == [number for number, own in enumerate(frames) if own <= LONGEST]
        for number, codes in found.items():
            assert codes.shape == (8, frames[number])
            assert codes.dtype == np.int16
            assert codes.base is None
            assert (codes == number + 1).all()
