"""From request to pieces: order, stock voices, chunks that wait for the first, leaving early."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from polychoir.engine.engine import Engine
from polychoir.engine.plan import limits_for
from polychoir.errors import InvalidRequest, VoiceNotFound
from polychoir.models.registry import open_model
from polychoir.models.tones import heard
from polychoir.pipeline import Speaker
from polychoir.types import ModelOptions, ReferenceClip, SequenceOutput, VoicePrompt
from polychoir.voices import LOCK_PHRASE, STOCK_VOICES, VoiceStore
from support.conformance import speech_request

LONG = " ".join(f"Sentence number {i} of a long text." for i in range(40))


def fake(**extra):
    return open_model("fake", ModelOptions(extra=extra))


class Designer:
    """The fake model as one that makes voices up: codes come out, and later chunks wait for the first."""

    def __init__(self, inner):
        self.inner = inner
        fields = inner.info.fields | {"instructions"}
        self.info = replace(inner.info, name="designer", voices=(), fields=fields)
        self.frontend = self
        self.spoken = []

    def prepare(self, request, voice):
        self.spoken.append((request.text, request.seed, voice))
        whole = self.inner.prepare(request, voice)
        warnings = ("instructions_ignored",) if request.instructions == "sparkling" else ()
        if voice.prompt is not None or whole.total_chunks == 1:
            return replace(whole, warnings=warnings)
        return replace(whole, chunks=whole.chunks[:1], rest=lambda first: self._rest(whole, first))

    def _rest(self, whole, first):
        assert first.index == 0 and first.codes is not None
        return whole.chunks[1:]

    def load(self, wake):
        inner_end = self.inner._end

        def end(row):
            codes = VoicePrompt(bytes(16 * 3), 8, 3, "", rms=0.5)
            output = inner_end(row)
            return SequenceOutput(row.seq_id, output.samples, epoch=row.epoch, codes=codes)

        self.inner._end = end
        return self.inner.load(wake)


@pytest.fixture
async def speaker_of():
    engines, threads = [], ThreadPoolExecutor(4)

    async def make(model, store=None, **options):
        engine = Engine(model, limits_for(model.info))
        engines.append(engine)
        engine.start()
        await engine.wait_ready()
        return Speaker(model, engine, store or VoiceStore(None), threads, **options)

    yield make
    for engine in engines:
        await engine.aclose()
    threads.shutdown()


async def collect(speaker, request):
    async with await speaker.speak(request) as speech:
        samples = np.concatenate([piece async for piece in speech])
    return speech, samples


async def test_chunks_come_out_in_order_and_the_late_facts_add_up(speaker_of):
    speaker = await speaker_of(fake(fake_steps=4))
    speech, samples = await collect(speaker, speech_request(LONG))
    assert heard(samples).replace(" ", "") == LONG.replace(" ", "")
    assert speech.total_chunks > 4
    report = speech.report
    assert report.duration_s == len(samples) / 24_000
    assert report.steps == 4 * speech.total_chunks
    assert report.run_s > 0 and report.queue_s >= 0
    assert (speech.voice, speech.seed) == ("tones", 1)


async def test_chunks_that_wait_for_the_first_follow_it(speaker_of):
    speaker = await speaker_of(Designer(fake()))
    speech, samples = await collect(speaker, speech_request(LONG))
    assert heard(samples).replace(" ", "") == LONG.replace(" ", "")
    assert speech.report.steps == 8 * speech.total_chunks
    assert speech.voice == "auto"


async def test_a_stock_name_is_made_once_and_is_one_speaker_for_ever(speaker_of, tmp_path):
    model = Designer(fake())
    speaker = await speaker_of(model, VoiceStore(tmp_path))
    requests = [speech_request("Hello.", voice=voice) for voice in ["nova", "NOVA", "nova", "echo"]]
    speeches = await asyncio.gather(*(collect(speaker, request) for request in requests))
    assert [speech.voice for speech, _ in speeches] == ["nova", "nova", "nova", "echo"]
    locks = [
        (text, seed, voice.id, voice.instruct) for text, seed, voice in model.spoken if text == LOCK_PHRASE
    ]
    assert sorted(locks) == sorted(
        (LOCK_PHRASE, STOCK_VOICES[name].seed, name, STOCK_VOICES[name].design) for name in ("nova", "echo")
    )
    again = Designer(fake())
    await collect(await speaker_of(again, VoiceStore(tmp_path)), speech_request("Hello.", voice="nova"))
    ((_, _, voice),) = again.spoken
    assert (voice.prompt.text, voice.prompt.frames, voice.prompt.rms) == (LOCK_PHRASE, 3, None)


async def test_a_voice_beside_a_reference_is_refused(speaker_of):
    speaker = await speaker_of(Designer(fake()))
    with pytest.raises(InvalidRequest) as caught:
        await speaker.speak(speech_request("Hi.", voice="nova", reference=ReferenceClip(b"x", "x")))
    assert caught.value.param == "voice"


async def test_unknown_voices_are_refused_before_any_work(speaker_of):
    model = Designer(fake())
    speaker = await speaker_of(model)
    with pytest.raises(VoiceNotFound):
        await speaker.speak(speech_request("Hi.", voice="../../etc/passwd"))
    assert model.spoken == []


async def test_strict_instructions_refuse_what_the_model_would_leave_out(speaker_of):
    request = speech_request("Hi.", instructions="sparkling")
    speech, _ = await collect(await speaker_of(Designer(fake())), request)
    assert speech.warnings == ("instructions_ignored",)
    with pytest.raises(InvalidRequest) as caught:
        await (await speaker_of(Designer(fake()), strict_instructions=True)).speak(request)
    assert caught.value.param == "instructions"


@pytest.mark.parametrize("waits", [False, True])
async def test_leaving_early_takes_every_row_out(speaker_of, waits):
    model = fake(fake_step_ms=2.0)
    speaker = await speaker_of(Designer(model) if waits else model)
    async with await speaker.speak(speech_request(LONG * 10)) as speech:
        async for _ in speech:
            break
    for _ in range(200):
        stats = speaker.engine.stats()
        if not (stats.waiting or stats.running or stats.decoding):
            break
        await asyncio.sleep(0.01)
    assert (stats.waiting, stats.running, stats.decoding) == (0, 0, 0)
    assert stats.sequences_finished < speech.total_chunks
