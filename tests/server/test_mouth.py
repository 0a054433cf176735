"""The encoder at the exit: pieces in, one file out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from polychoir.errors import InvalidRequest
from polychoir.server.mouth import Mouth
from polychoir.types import AudioFormat
from support.listening import samples_of


@pytest.mark.parametrize("kind", ["wav", "flac", "pcm"])
@pytest.mark.parametrize("rate", [None, 16_000])
async def test_pieces_make_the_same_file_as_the_whole(kind: AudioFormat, rate: int | None) -> None:
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, 24_000).astype(np.float32)
    with ThreadPoolExecutor(1) as pool:
        whole, pieces = Mouth(pool, kind, rate), Mouth(pool, kind, rate)
        await whole.feed(samples)
        for piece in np.split(samples, [1, 960, 7_777, 7_777]):
            await pieces.feed(piece)
        file = b"".join(await whole.finish())
        assert b"".join(await pieces.finish()) == file
    assert len(samples_of(file, kind)[0]) == (rate or 24_000)
    assert whole.encode_s > 0


@pytest.mark.parametrize(("kind", "rate"), [("opus", 44_100), ("mp3", 20_000), ("wav", 4_000)])
def test_a_rate_that_cannot_be_written_is_refused_at_once(kind: AudioFormat, rate: int) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(InvalidRequest) as caught:
        Mouth(pool, kind, rate)
    assert caught.value.param == "sample_rate"
