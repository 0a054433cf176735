"""First sound as a stranger hears it: OpenAI's own client, a real port, the embedded voice, the judge."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI

from support.judge import transcribe, word_error_rate
from support.listening import MAGIC, samples_of
from support.serving import listening, make_app

DATA = Path(__file__).parents[1] / "data"
SENTENCES = (
    "Hello there, and welcome to the concert.",
    "The quick brown fox jumps over the lazy dog.",
    "Please call me back before seven tomorrow morning.",
)
DELAY_S = {"wav": 0.0, "pcm": 0.0, "flac": 0.0, "opus": 0.001, "mp3": 0.001, "aac": 0.100}
"""How much longer than the samples each format may be (docs/api.md)."""

MISHEARD = {"cattle": "kettle"}
"""The judge's word for what was said, where no other text holds either."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    app = make_app(tmp_path_factory.mktemp("data"), model=("hibari",))
    with listening(app) as url, OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as one:
        yield one


def ask(client: OpenAI, text: str, kind: str, *, streaming: bool = False) -> bytes:
    order = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": kind}
    order["extra_body"] = {"seed": 5}
    if not streaming:
        return client.audio.speech.create(**order).content
    with client.audio.speech.with_streaming_response.create(**order) as answer:
        return b"".join(answer.iter_bytes())


@pytest.mark.heard
@pytest.mark.parametrize("kind", DELAY_S)
def test_three_sentences_are_heard_in_every_format_plain_and_streaming(client: OpenAI, kind: str) -> None:
    for text in SENTENCES:
        plain = ask(client, text, kind)
        assert plain == ask(client, text, kind, streaming=True)
        assert kind == "pcm" or plain.startswith(MAGIC[kind])
        samples, rate = samples_of(plain, kind)
        exact = len(samples_of(ask(client, text, "wav"), "wav")[0]) / 24_000
        assert 0 <= len(samples) / rate - exact <= DELAY_S[kind] + 1e-9
        assert word_error_rate(text, transcribe(samples, rate)) == 0


@pytest.mark.heard
def test_english_texts_up_to_sixty_words_are_heard(client: OpenAI) -> None:
    """At most 5 % of all their words together; en-60, whose name is its length, counts 62."""
    texts = [json.loads(line) for line in (DATA / "texts.jsonl").read_text().splitlines()]
    short = [text["text"] for text in texts if text["lang"] == "en" and text["words"] <= 62]
    assert len(short) == 3
    heard = [transcribe(samples_of(ask(client, text, "wav"), "wav")[0], 24_000) for text in short]
    assert word_error_rate(" ".join(short), " ".join(heard)) <= 0.05


@pytest.mark.heard
def test_A45_every_listener_hears_their_own_words_and_no_others(client: OpenAI) -> None:
    cases = map(json.loads, (DATA / "cases_A.jsonl").read_text().splitlines())
    calls = next(case for case in cases if case["id"] == "A45")["input"]["concurrent"]
    texts = [call["json"]["input"] for call in calls]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: ask(client, text, "wav"), texts))
    assert min(map(len, answers)) > 5_000
    own = [text.split()[3] for text in texts]
    for word, answer in zip(own, answers, strict=True):
        heard = transcribe(*samples_of(answer, "wav")).lower().replace("-", " ").split()
        heard = [MISHEARD.get(bare := one.strip(".,!?"), bare) for one in heard]
        assert heard.count(word) == 2, (word, heard)
        assert not (set(own) - {word}) & set(heard), "somebody else's word"


@pytest.mark.heard
def test_say_gives_the_samples_of_the_server(client: OpenAI, tmp_path: Path) -> None:
    out = tmp_path / "said.wav"
    command = [sys.executable, "-m", "polychoir", "say", SENTENCES[0], "-o", str(out), "--seed", "5"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    said, _ = samples_of(out.read_bytes(), "wav")
    served, _ = samples_of(ask(client, SENTENCES[0], "wav"), "wav")
    assert np.array_equal(said, served)
