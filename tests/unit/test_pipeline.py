"""From request to pieces: order, stock voices, chunks that wait for the first, leaving early."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from polychoir.engine.engine import LocalEngine
from polychoir.engine.plan import limits_for
from polychoir.errors import (
    InternalError,
    InvalidRequest,
    TextTooLong,
    UnspeakableText,
    UnsupportedByModel,
    VoiceNotFound,
)
from polychoir.lanes import Lanes
from polychoir.models.registry import open_model
from polychoir.models.tones import heard
from polychoir.pipeline import MAX_AUDIO_S, Speaker
from polychoir.types import (
    ModelOptions,
    Prepared,
    ReferenceClip,
    SamplingParams,
    SequenceOutput,
    VoicePrompt,
    Work,
)
from polychoir.voices import LOCK_PHRASE, STOCK_VOICES, VoiceStore
from support.conformance import speech_request

LONG = " ".join(f"Sentence number {i} of a long text." for i in range(40))


def fake(**extra):
    return open_model("fake", ModelOptions(extra=extra))


class Designer:
    """The fake model as one that makes voices up: codes come out, and later chunks wait for the first."""

    def __init__(self, inner):
        self.inner = inner
        fields = inner.info.fields | {"instructions", "ref_audio"}
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
    engines, lanes = [], Lanes(4)

    async def make(model, store=None, **options):
        engine = LocalEngine(model, limits_for(model.info))
        engines.append(engine)
        engine.start()
        await engine.wait_ready()
        return Speaker(model, engine, store or VoiceStore(None), lanes, **options)

    yield make
    for engine in engines:
        await engine.aclose()
    lanes.close()


async def collect(speaker, request):
    async with await speaker.speak(request) as speech:
        samples = np.concatenate([piece async for piece in speech])
    return speech, samples


class Backwards:
    """The fake model whose later chunks have fewer steps and so end first. `ended` notes their order."""

    def __init__(self, inner):
        self.inner, self.info, self.frontend = inner, inner.info, self
        self.ended = []

    def prepare(self, request, voice):
        whole = self.inner.prepare(request, voice)
        chunks = [
            replace(chunk, work=Work(chunk.work.tokens, 4 * (whole.total_chunks - chunk.index)))
            for chunk in whole.chunks
        ]
        return replace(whole, chunks=tuple(chunks))

    def load(self, wake):
        inner_end = self.inner._end

        def end(row):
            self.ended.append(row.chunk.index)
            return inner_end(row)

        self.inner._end = end
        return self.inner.load(wake)


async def test_chunks_that_end_out_of_order_come_out_in_order(speaker_of):
    model = Backwards(fake())
    speech, samples = await collect(await speaker_of(model), speech_request(LONG))
    assert model.ended == sorted(range(speech.total_chunks), reverse=True)
    assert heard(samples).replace(" ", "") == LONG.replace(" ", "")


async def test_the_late_facts_add_up(speaker_of):
    speaker = await speaker_of(fake(fake_steps=4))
    speech, samples = await collect(speaker, speech_request(LONG))
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


async def test_what_the_card_does_not_allow_is_refused_or_left_out_before_any_work(speaker_of):
    model = Designer(fake())
    speaker = await speaker_of(model)
    request = speech_request("Hi.", sampling=SamplingParams(guidance_scale=2.0))
    with pytest.raises(UnsupportedByModel) as caught:
        await speaker.speak(request)
    assert (caught.value.param, model.spoken) == ("guidance_scale", [])
    speech, _ = await collect(await speaker_of(fake()), speech_request("Hi.", instructions="male"))
    assert speech.warnings == ("instructions_ignored",)


async def test_a_text_without_a_letter_is_refused_before_it_queues(speaker_of):
    model = Designer(fake())
    speaker = await speaker_of(model)
    with pytest.raises(UnspeakableText):
        await speaker.speak(speech_request("... " * 5_000))
    assert model.spoken == []


class Estimating:
    """A frontend that says only how long its chunks will be; `waiting` more wait for the first one."""

    def __init__(self, estimates, waiting=0):
        self.estimates, self.waiting = estimates, waiting

    def prepare(self, request, voice):
        whole = fake().prepare(request, voice)
        chunks = [replace(whole.chunks[0], index=i, estimated_s=s) for i, s in enumerate(self.estimates)]
        return Prepared(tuple(chunks), len(chunks) + self.waiting)


class WithFrontend:
    def __init__(self, inner, frontend):
        self.info, self.load, self.frontend = inner.info, inner.load, frontend


@pytest.mark.parametrize(
    ("estimates", "waiting", "fits"),
    [
        ([MAX_AUDIO_S / 2] * 2, 0, True),
        ([MAX_AUDIO_S / 2, MAX_AUDIO_S / 2 + 1], 0, False),
        ([MAX_AUDIO_S / 10 + 1], 9, False),
    ],
)
async def test_the_audio_of_a_request_is_bounded_by_its_estimate(speaker_of, estimates, waiting, fits):
    speaker = await speaker_of(WithFrontend(fake(), Estimating(estimates, waiting)))
    if fits:
        async with await speaker.speak(speech_request("Hi.")) as speech:
            assert speech.total_chunks == len(estimates)
        return
    with pytest.raises(TextTooLong, match=r"about 72\d\d s .* at most 7200 s") as caught:
        await speaker.speak(speech_request("Hi."))
    assert caught.value.param == "input"


async def test_a_model_that_makes_no_chunks_is_at_fault(speaker_of):
    speaker = await speaker_of(WithFrontend(fake(), Estimating([])))
    with pytest.raises(InternalError, match="fake"):
        await speaker.speak(speech_request("Hi."))


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
