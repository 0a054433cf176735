"""The unmodified OpenAI SDK against a real port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support.listening import MAGIC, duration_of
from support.serving import listening, make_app, wait_until

TEXT = "One sentence for six formats."


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening(make_app(tmp_path_factory.mktemp("data"))) as base:
        yield f"{base}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none needed", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("kind", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_speech_plain_and_streamed(client: openai.OpenAI, kind: str, tmp_path: Path) -> None:
    asked = {"model": "tts-1", "voice": "alloy", "input": TEXT, "response_format": kind}
    whole = client.audio.speech.create(**asked, extra_body={"seed": 5}).content
    file = tmp_path / "answer"
    with client.audio.speech.with_streaming_response.create(**asked, extra_body={"seed": 5}) as response:
        assert response.headers["x-polychoir-seed"] == "5"
        response.stream_to_file(file)
    assert file.read_bytes() == whole
    assert kind == "pcm" or whole.startswith(MAGIC[kind])
    expected = float(response.headers["x-audio-duration-s"])
    assert duration_of(whole, kind) == pytest.approx(expected, abs=0.1 if kind == "aac" else 0.001)


def test_default_format_is_mp3(client: openai.OpenAI) -> None:
    answer = client.audio.speech.create(model="tts-1", voice="nova", input="Hello.")
    assert answer.content.startswith(MAGIC["mp3"])


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("gpt-4o-mini-tts").id == "gpt-4o-mini-tts"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="tts-1", voice="nobody", input="Hello.")
    error = caught.value
    assert (error.code, error.param, error.type) == ("voice_not_found", "voice", "invalid_request_error")
    assert error.request_id is not None
    assert error.request_id.startswith("req_")


def test_a_key_that_is_wrong(tmp_path: Path) -> None:
    with listening(make_app(tmp_path, api_key="secret")) as base:
        wrong = openai.OpenAI(base_url=f"{base}/v1", api_key="wrong")
        with wrong, pytest.raises(openai.AuthenticationError):
            wrong.audio.speech.create(model="tts-1", voice="nova", input="Hello.")
        with openai.OpenAI(base_url=f"{base}/v1", api_key="secret") as client:
            assert client.audio.speech.create(model="tts-1", voice="nova", input="Hello.").content


def test_failures_are_not_repeated(tmp_path: Path) -> None:
    app = make_app(tmp_path, fake_fail_rate=1.0)
    with listening(app) as base, openai.OpenAI(base_url=f"{base}/v1", api_key="x", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError):
            client.audio.speech.create(model="tts-1", voice="nova", input="Hello.")
        stats = app.state.house.speakers["fake"].engine.stats
        wait_until(lambda: stats().sequences_failed > 0)
        assert stats().sequences_failed == 1


async def test_a_closed_connection_takes_its_rows_along(tmp_path: Path) -> None:
    app = make_app(tmp_path, fake_step_ms=5.0)
    stats = app.state.house.speakers["fake"].engine.stats
    with listening(app) as base:
        client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="x", max_retries=0, timeout=0.3)
        async with client:
            with pytest.raises(openai.APITimeoutError):
                await client.audio.speech.create(
                    model="tts-1", voice="nova", input="Hello. " * 100, extra_body={"num_step": 128}
                )
        wait_until(lambda: stats().sequences_aborted > 0 and stats().running == stats().waiting == 0)
        assert stats().sequences_finished == 0
