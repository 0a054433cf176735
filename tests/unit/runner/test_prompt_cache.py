"""The prompt cache: what it knows is not encoded again, what it holds is bounded, errors stay apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polychoir.runner.prompt_cache import Fetched, PromptCache


class Encoder:
    """160 bytes of codes a clip; the clip `b"bad"` cannot be encoded."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []

    def __call__(self, clips: Sequence[bytes]) -> list[np.ndarray]:
        self.calls.append(list(clips))
        if b"bad" in clips:
            raise ValueError("this clip cannot be encoded")
        return [np.full((8, 10), len(clip), np.int16) for clip in clips]


def fetch(cache: PromptCache, encode: Encoder, *names: str) -> Fetched:
    return cache.fetch({name: name.encode() for name in names}, encode)


def test_the_least_used_is_forgotten_first() -> None:
    cache, encode = PromptCache(limit_bytes=400), Encoder()
    for name in ("a", "b", "a", "c", "a", "b"):
        fetch(cache, encode, name)
    assert encode.calls == [[b"a"], [b"b"], [b"c"], [b"b"]]
    assert cache.held_bytes == 320


def test_only_what_is_missing_is_encoded_and_that_together() -> None:
    cache, encode = PromptCache(limit_bytes=1_000), Encoder()
    fetch(cache, encode, "b")
    fetched = fetch(cache, encode, "aaa", "b", "cc")
    assert encode.calls == [[b"b"], [b"aaa", b"cc"]]
    assert fetched.encoded == 2
    assert {name: codes[0, 0] for name, codes in fetched.codes.items()} == {"aaa": 3, "b": 1, "cc": 2}
    assert "cc" in cache


def test_nothing_missing_is_nothing_to_encode() -> None:
    cache, encode = PromptCache(limit_bytes=1_000), Encoder()
    fetch(cache, encode, "a")
    assert fetch(cache, encode, "a").encoded == 0
    assert fetch(cache, encode) == Fetched({}, {}, 0)
    assert encode.calls == [[b"a"]]


def test_what_is_larger_than_the_cache_is_given_but_not_kept() -> None:
    cache, encode = PromptCache(limit_bytes=200), Encoder()
    fetched = fetch(cache, encode, "a", "b", "c")
    assert [fetched.codes[name].shape for name in "abc"] == [(8, 10)] * 3
    assert cache.held_bytes == 160
    assert "c" in cache


def test_a_failure_is_its_own_clips_and_is_not_kept() -> None:
    cache, encode = PromptCache(limit_bytes=1_000), Encoder()
    fetched = fetch(cache, encode, "a", "bad", "b")
    assert encode.calls == [[b"a", b"bad", b"b"], [b"a"], [b"bad"], [b"b"]]
    assert set(fetched.codes) == {"a", "b"}
    assert isinstance(fetched.errors["bad"], ValueError)
    assert (len(fetched.errors), fetched.encoded) == (1, 2)
    assert "bad" not in cache
    assert isinstance(fetch(cache, encode, "bad").errors["bad"], ValueError)
    assert encode.calls[-1] == [b"bad"]
