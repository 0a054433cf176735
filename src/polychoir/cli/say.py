"""`polychoir say`: one request without a server, through the same pipeline, to the same samples."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NoReturn

import typer

from polychoir.cli.flags import field_flags, given, with_flags
from polychoir.cli.serve import ConfigFlag, read_settings
from polychoir.config import Settings
from polychoir.errors import DeadlineExceeded, InvalidRequest
from polychoir.server.announce import abandon_stdout
from polychoir.server.schemas import MAX_INPUT_CHARS, SpeechBody, parse_body

if TYPE_CHECKING:
    from polychoir.pipeline import Speech

MACHINE_SETTINGS = ("device", "dtype", "data_dir")
"""Settings that `say` takes as flags; the others come from the environment and the file."""

OTHER_MEANINGS = {
    "model": "Model to load: a path, hub id or entry-point name [the one that `serve` would take]",
    "response_format": "Audio format; otherwise the output's suffix names it",
    "ref_audio": "Clip to clone: an audio file",
}
"""What three request fields are on the command line."""

SUFFIXES: Mapping[str, str] = {
    ".mp3": "mp3",
    ".opus": "opus",
    ".ogg": "opus",
    ".aac": "aac",
    ".flac": "flac",
    ".wav": "wav",
    ".pcm": "pcm",
    ".raw": "pcm",
}
STDOUT = Path("-")
ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Beside SIGINT, which Python itself turns into an exception."""

CLIP_LIMIT = 50 * 2**20
"""Largest reference clip that is read, in bytes."""


@with_flags(
    *field_flags(SpeechBody, without=("input",), instead=OTHER_MEANINGS),
    *field_flags(Settings, only=MACHINE_SETTINGS),
)
def say(
    text: Annotated[str, typer.Argument(help="What to say; - reads it from stdin.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write; - is stdout. The suffix names the format.")
    ] = Path("out.wav"),
    config: ConfigFlag = None,
    **flags: Any,
) -> None:
    """Say a text into a file, without a server."""
    wanted = given(flags)
    settings = read_settings(_machine_flags(wanted), config)
    body = parse_body(_request_fields(wanted, text, output))
    with _ended_by_signals():
        asyncio.run(_say(settings, body, output))


def _machine_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Take what is about the machine out of the flags; a model is then loaded by its reference."""
    found = {name: flags.pop(name) for name in MACHINE_SETTINGS if name in flags}
    if "model" in flags:
        found["model"] = [flags.pop("model")]
    return found


def _request_fields(flags: Mapping[str, Any], text: str, output: Path) -> dict[str, Any]:
    fields = {"response_format": _format_of(output), **flags}
    fields["input"] = _read_text() if text == "-" else text
    if (clip := fields.get("ref_audio")) is not None:
        fields["ref_audio"] = _read_clip(Path(clip))
    if fields["response_format"] is None:
        known = ", ".join(SUFFIXES)
        raise InvalidRequest(f"{output} has none of the suffixes {known}; say --response-format")
    return fields


def _format_of(output: Path) -> str | None:
    return "wav" if output == STDOUT else SUFFIXES.get(output.suffix.lower())


def _read_text() -> str:
    try:
        # One character more than is allowed, so that a longer text is refused and not cut.
        return sys.stdin.read(MAX_INPUT_CHARS + 1)
    except UnicodeDecodeError as error:
        raise InvalidRequest("stdin is not text in this terminal's encoding", param="input") from error


def _read_clip(path: Path) -> str:
    try:
        if path.stat().st_size > CLIP_LIMIT:
            raise InvalidRequest(
                f"ref_audio: {path} is larger than {CLIP_LIMIT >> 20} MiB", param="ref_audio"
            )
        return base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise InvalidRequest(f"ref_audio: cannot read {path}: {error.strerror}", param="ref_audio") from error


async def _say(settings: Settings, body: SpeechBody, output: Path) -> None:
    # Imported here: they bring numpy and the web framework, which --help should not wait for.
    from polychoir.assembly import build_speakers

    asked = body.to_request(request_id="say")
    one_model = settings.model_copy(update={"model": settings.model[:1]})
    (speaker,) = build_speakers(one_model).values()
    speaker.engine.start()
    try:
        await speaker.engine.wait_ready()
        started = time.perf_counter()
        async with _deadline(body.timeout), await speaker.speak(asked) as speech:
            for warning in speech.warnings:
                typer.echo(f"polychoir: warning: {warning}", err=True)
            with _opened(output) as file:
                await _write(speech, body, file)
        _tell(output, speech, time.perf_counter() - started)
    finally:
        await speaker.engine.aclose()


def _tell(output: Path, speech: Speech, spent_s: float) -> None:
    made = f"{speech.report.duration_s:.2f} s of audio in {spent_s:.2f} s"
    name = "stdout" if output == STDOUT else output
    typer.echo(f"{name}: {made}, voice {speech.voice}, seed {speech.seed}", err=True)


@asynccontextmanager
async def _deadline(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise DeadlineExceeded(f"not done within {seconds:g} s", param="timeout") from error


async def _write(speech: Speech, body: SpeechBody, file: BinaryIO) -> None:
    from polychoir.audio.encode import Encoder
    from polychoir.audio.resample import Resampler

    rate = body.sample_rate or speech.sample_rate
    resampler = Resampler(speech.sample_rate, rate)
    encoder = Encoder(body.response_format, rate)
    with _progress(speech.total_chunks) as advance:
        async for samples in speech:
            file.write(encoder.feed(resampler.feed(samples)))
            advance()
    file.write(encoder.feed(resampler.finish()) + encoder.finish())


@contextmanager
def _progress(chunks: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr for a text of several chunks; a short one is over before it could be read."""
    if chunks < 2:
        yield lambda: None
        return
    with typer.progressbar(length=chunks, label="chunks", show_pos=True, file=sys.stderr) as bar:
        yield lambda: bar.update(1)


@contextmanager
def _opened(output: Path) -> Iterator[BinaryIO]:
    """Where the audio goes: stdout, a new file, or, as it is, whatever else has this name."""
    try:
        if output == STDOUT:
            with _stdout() as file:
                yield file
        elif _is_plain(output):
            with _whole_file(output) as file:
                yield file
        else:  # a pipe, a device, or a link, which may lead to one: what is at its end stays what it is
            with output.open("wb") as file:
                yield file
    except OSError as error:
        raise InvalidRequest(f"cannot write {output}: {error.strerror}", param="output") from error


@contextmanager
def _stdout() -> Iterator[BinaryIO]:
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        abandon_stdout()
        raise


@contextmanager
def _whole_file(output: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when it is complete."""
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _is_plain(output: Path) -> bool:
    """Whether a new file may take this name: it is free, or a regular file's own."""
    try:
        return stat.S_ISREG(output.lstat().st_mode)
    except FileNotFoundError:
        return True


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let the signals that end a process do so through its `finally` blocks: no half file stays behind."""
    if threading.current_thread() is not threading.main_thread():  # where Python has no say in signals
        yield
        return

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
