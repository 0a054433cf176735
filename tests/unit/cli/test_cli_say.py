from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polychoir.audio.decode import decode_clip
from polychoir.models.tones import heard
from support.serving import PATIENCE_S, make_app, served, wait_until

Run = Callable[..., Any]
TEXT = "Good evening."


def _samples(path: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return decode_clip(Path(path).read_bytes(), max_seconds=600)


def test_says_the_text_into_a_file(run: Run) -> None:
    code, out, err = run("say", TEXT, "-o", "a.wav", "--model", "fake", "--seed", "3")
    assert (code, out) == (0, "")
    assert heard(_samples("a.wav")) == TEXT
    assert err.startswith("a.wav: ") and err.endswith("voice tones, seed 3\n")


def test_the_default_output_is_a_wav(run: Run) -> None:
    assert run("say", TEXT, "--model", "fake").code == 0
    assert Path("out.wav").read_bytes()[:4] == b"RIFF"


async def test_the_server_gives_the_same_samples(run: Run, tmp_path: Path) -> None:
    import asyncio

    arguments = ("say", TEXT, "-o", "a.wav", "--model", "fake", "--seed", "7", "--speed", "1.5")
    assert (await asyncio.to_thread(run, *arguments)).code == 0
    async with served(make_app(tmp_path)) as house:
        answer = await house.speak(TEXT, seed=7, speed=1.5)
    assert answer.content == Path("a.wav").read_bytes()


@pytest.mark.parametrize(
    ("name", "magic"),
    [
        ("a.mp3", b"\xff\xf3"),
        ("a.OPUS", b"OggS"),
        ("a.ogg", b"OggS"),
        ("a.aac", b"\xff\xf1"),
        ("a.flac", b"fLaC"),
        ("a.wav", b"RIFF"),
    ],
)
def test_the_suffix_names_the_format(run: Run, name: str, magic: bytes) -> None:
    assert run("say", TEXT, "-o", name, "--model", "fake").code == 0
    assert Path(name).read_bytes().startswith(magic)


def test_response_format_beats_the_suffix(run: Run) -> None:
    assert run("say", TEXT, "-o", "a.bin", "--response-format", "flac", "--model", "fake").code == 0
    assert Path("a.bin").read_bytes()[:4] == b"fLaC"


def test_sample_rate(run: Run) -> None:
    assert run("say", TEXT, "-o", "a.pcm", "--model", "fake", "--seed", "1").code == 0
    assert (
        run("say", TEXT, "-o", "b.pcm", "--model", "fake", "--seed", "1", "--sample-rate", "48000").code == 0
    )
    assert Path("b.pcm").stat().st_size == 2 * Path("a.pcm").stat().st_size


def test_a_dash_reads_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(TEXT + "\n"))
    assert run("say", "-", "-o", "a.wav", "--model", "fake").code == 0
    assert heard(_samples("a.wav")) == TEXT


def test_stdin_longer_than_the_limit_is_refused_and_not_cut(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a" * 100_001))
    assert run("say", "-", "-o", "a.wav", "--model", "fake") == (
        1, "", "polychoir: input is longer than 100000 characters.\n",
    )  # fmt: skip


def test_a_dash_writes_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> None:
    from polychoir.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["polychoir", "say", TEXT, "-o", "-", "--model", "fake"])
    with pytest.raises(SystemExit, match="0"):
        main()
    written = capfdbinary.readouterr()
    assert heard(decode_clip(written.out, max_seconds=60)) == TEXT
    assert written.err.startswith(b"stdout: ")
    assert not list(tmp_path.iterdir())


def test_a_long_text_shows_how_far_it_is(run: Run) -> None:
    text = " ".join(f"Sentence number {n} of a text with many." for n in range(40))
    code, _, err = run("say", text, "-o", "a.wav", "--model", "fake")
    assert code == 0
    assert "chunks" in err
    assert heard(_samples("a.wav")).replace(" ", "") == text.replace(" ", "")


def test_request_fields_beat_request_defaults(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCHOIR_NUM_STEP", "4")
    monkeypatch.setenv("POLYCHOIR_FAKE_STEP_MS", "50")
    default, chosen = (
        run("say", TEXT, "--model", "fake"),
        run("say", TEXT, "--model", "fake", "--num-step", "1"),
    )
    seconds = [float(outcome.err.split(" s of audio in ")[1].split()[0]) for outcome in (default, chosen)]
    assert seconds[0] >= 0.2 > seconds[1]


def test_warnings_are_said(run: Run) -> None:
    _, _, err = run("say", TEXT, "--model", "fake", "--voice", "nova", "--instructions", "whisper")
    assert "warning: instructions_ignored\n" in err
    assert "warning: voice_substituted\n" in err


def test_strict_instructions_come_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCHOIR_STRICT_INSTRUCTIONS", "1")
    code, _, err = run("say", TEXT, "--model", "fake", "--instructions", "whisper")
    assert (code, err) == (1, "polychoir: fake takes no instructions.\n")


@pytest.mark.parametrize("failing", [("--timeout", "0.05"), ("--voice", "nobody")])
def test_a_run_that_fails_leaves_no_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, str]
) -> None:
    monkeypatch.setenv("POLYCHOIR_FAKE_STEP_MS", "100")
    assert run("say", TEXT, "-o", "a.wav", "--model", "fake", *failing).code == 1
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_a_reference_clip_is_read_from_its_file(run: Run) -> None:
    """The fake model cannot clone, and its refusal shows that the clip arrived."""
    Path("clip.wav").write_bytes(b"RIFF")
    code, _, err = run("say", TEXT, "--model", "fake", "--ref-audio", "clip.wav", "--ref-text", "Hello.")
    assert (code, err) == (1, "polychoir: The model fake cannot honour ref_audio.\n")


# -- where it is written ---------------------------------------------------------------------------


def test_a_pipe_is_written_into(run: Run, tmp_path: Path) -> None:
    os.mkfifo("pipe.wav")
    heard_there: list[bytes] = []
    reader = threading.Thread(target=lambda: heard_there.append(Path("pipe.wav").read_bytes()))
    reader.start()
    assert run("say", TEXT, "-o", "pipe.wav", "--model", "fake").code == 0
    reader.join(PATIENCE_S)
    assert stat.S_ISFIFO(os.stat("pipe.wav").st_mode)
    assert heard(decode_clip(heard_there[0], max_seconds=60)) == TEXT
    assert {path.name for path in tmp_path.iterdir()} <= {"pipe.wav", "data"}


def test_a_link_leads_to_what_is_written(run: Run, tmp_path: Path) -> None:
    Path("real.wav").write_bytes(b"old")
    Path("link.wav").symlink_to("real.wav")
    Path("nothing.wav").symlink_to("/dev/null")
    Path("new.wav").symlink_to("born.wav")
    for name in ("link.wav", "nothing.wav", "new.wav"):
        assert run("say", TEXT, "-o", name, "--model", "fake").code == 0
        assert Path(name).is_symlink()
    assert heard(_samples("real.wav")) == heard(_samples("born.wav")) == TEXT
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_regular_file_is_replaced_when_all_is_done(run: Run) -> None:
    Path("a.wav").write_bytes(b"old")
    before = os.stat("a.wav").st_ino
    assert run("say", TEXT, "-o", "a.wav", "--model", "fake").code == 0
    assert heard(_samples("a.wav")) == TEXT
    assert os.stat("a.wav").st_ino != before


def saying(folder: Path, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"POLYCHOIR_DATA_DIR": str(folder / "data")}
    command = [sys.executable, "-m", "polychoir", "say", "Too slow to end. " * 20, "--model", "fake"]
    return subprocess.Popen([*command, *arguments], cwd=folder, env=environment, **pipes)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_leaves_neither_file_nor_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    monkeypatch.setenv("POLYCHOIR_FAKE_STEP_MS", "500")
    (tmp_path / "a.wav").write_bytes(b"old")
    with saying(tmp_path, "-o", "a.wav", "--num-step", "128", stderr=subprocess.PIPE) as process:
        wait_until(lambda: bool(list(tmp_path.glob(".a.wav.*.part"))))
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert b"Traceback" not in err
    assert not list(tmp_path.glob(".*.part"))
    assert (tmp_path / "a.wav").read_bytes() == b"old"


def test_a_reader_of_stdout_that_leaves_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYCHOIR_FAKE_STEP_MS", "0")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with saying(tmp_path, "-o", "-", **pipes) as process:
        if process.stdout is None or process.stderr is None:
            raise AssertionError("pipes were asked for")
        process.stdout.close()
        lines = process.stderr.read().splitlines()
        assert process.wait(PATIENCE_S) == 1
    assert lines[-1] == b"polychoir: cannot write -: Broken pipe"
    assert b"Traceback" not in b"".join(lines)
