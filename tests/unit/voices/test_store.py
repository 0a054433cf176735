"""Locked voices: kept, bounded, whole, and never a path of a caller's making."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from polychoir.errors import InternalError
from polychoir.types import VoicePrompt
from polychoir.voices import STOCK_VOICES, VoiceStore


def prompt(number: int = 1, rms: float | None = 0.1) -> VoicePrompt:
    return VoicePrompt(bytes([number, 0]) * 8 * 5, 8, 5, "Hällo.", rms)


def the_file(root: Path) -> Path:
    (file,) = root.rglob("*.json")
    return file


@pytest.mark.parametrize("rms", [None, 0.25])
def test_a_voice_survives_the_process(tmp_path: Path, rms: float | None) -> None:
    VoiceStore(tmp_path).put("omni", "alloy", prompt(3, rms))
    assert VoiceStore(tmp_path).get("omni", "alloy") == prompt(3, rms)


def test_models_and_names_are_apart(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    store.put("a", "alloy", prompt(1))
    store.put("b", "alloy", prompt(2))
    store.put("a", "ash", prompt(3))
    fresh = VoiceStore(tmp_path)
    assert [fresh.get(*key) for key in (("a", "alloy"), ("b", "alloy"), ("a", "ash"), ("b", "ash"))] == [
        prompt(1),
        prompt(2),
        prompt(3),
        None,
    ]


def test_without_a_root_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = VoiceStore(None)
    assert store.get("omni", "alloy") is None
    store.put("omni", "alloy", prompt())
    assert store.get("omni", "alloy") == prompt()
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("model", ["../../evil", "/etc", "a\0b", "x" * 10_000, "\ud800", ""])
def test_a_models_name_is_never_a_path(tmp_path: Path, model: str) -> None:
    root = tmp_path / "root"
    VoiceStore(root).put(model, "alloy", prompt())
    assert VoiceStore(root).get(model, "alloy") == prompt()
    assert the_file(tmp_path).relative_to(root).parts[0] == "stock"


@pytest.mark.parametrize("name", ["../alloy", "Alloy", "", "voice_123", "alloy\0"])
def test_only_our_own_names_are_kept(tmp_path: Path, name: str) -> None:
    store = VoiceStore(tmp_path)
    with pytest.raises(InternalError):
        store.put("omni", name, prompt())
    with pytest.raises(InternalError):
        store.get("omni", name)
    assert list(tmp_path.iterdir()) == []


def _broken(record: dict[str, object], **changes: object) -> bytes:
    return json.dumps(record | changes).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: b"",
        lambda record: json.dumps(record).encode()[:-20],
        lambda record: b"\xff\xfe\x00",
        lambda record: b"[" * 100_000,
        lambda record: b"[1, 2]",
        lambda record: b" " * 1_000_001,
        lambda record: _broken(record, format=2),
        lambda record: _broken(record, model="other"),
        lambda record: _broken(record, frames=4),
        lambda record: _broken(record, frames=-5),
        lambda record: _broken(record, codebooks="8"),
        lambda record: _broken(record, codes="!!!"),
        lambda record: _broken(record, codes="é"),
        lambda record: _broken(record, codes=None),
        lambda record: _broken(record, codes="AAAA"),
        lambda record: _broken(record, text=None),
        lambda record: _broken(record, rms="loud"),
        lambda record: _broken(record, rms=float("nan")),
        lambda record: _broken(record, sha256="0" * 64),
    ],
)
def test_a_damaged_file_is_set_aside_and_locked_again(tmp_path: Path, damage, caplog) -> None:  # type: ignore[no-untyped-def]
    VoiceStore(tmp_path).put("omni", "alloy", prompt())
    file = the_file(tmp_path)
    broken = damage(json.loads(file.read_text()))
    file.write_bytes(broken)
    store = VoiceStore(tmp_path)
    assert store.get("omni", "alloy") is None
    assert "damaged" in caplog.text
    assert file.with_suffix(".damaged").read_bytes() == broken and not file.exists()
    store.put("omni", "alloy", prompt(2))
    assert VoiceStore(tmp_path).get("omni", "alloy") == prompt(2)


def test_a_file_that_cannot_be_read_is_an_error_not_a_new_voice(tmp_path: Path) -> None:
    VoiceStore(tmp_path).put("omni", "alloy", prompt())
    file = the_file(tmp_path)
    file.unlink()
    file.mkdir()  # opening it fails, whoever runs the test
    with pytest.raises(InternalError, match="cannot be read"):
        VoiceStore(tmp_path).get("omni", "alloy")


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "stock").write_text("in the way")
    store = VoiceStore(tmp_path)
    with pytest.raises(InternalError, match="cannot be stored"):
        store.put("omni", "alloy", prompt())


def test_a_failed_write_leaves_the_old_voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = VoiceStore(tmp_path)
    store.put("omni", "alloy", prompt(1))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InternalError, match="disk full"):
        store.put("omni", "alloy", prompt(2))
    monkeypatch.undo()
    assert store.get("omni", "alloy") == VoiceStore(tmp_path).get("omni", "alloy") == prompt(1)
    assert [path.name for path in the_file(tmp_path).parent.iterdir()] == ["alloy.json"]


def test_memory_is_bounded_and_the_least_used_leaves() -> None:
    store = VoiceStore(None, capacity=2)
    store.put("omni", "alloy", prompt(1))
    store.put("omni", "ash", prompt(2))
    store.get("omni", "alloy")
    store.put("omni", "echo", prompt(3))
    held = [name for name in STOCK_VOICES if store.get("omni", name) is not None]
    assert held == ["alloy", "echo"]


def test_what_left_memory_comes_back_from_disk(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, capacity=1)
    for number, name in enumerate(STOCK_VOICES, 1):
        store.put("omni", name, prompt(number))
    assert [store.get("omni", name) for name in STOCK_VOICES] == [prompt(n) for n in range(1, 14)]


def test_readers_see_a_whole_voice_while_it_is_written(tmp_path: Path) -> None:
    """Eight threads write and read one name through stores of their own: never a torn file."""
    known = [prompt(number) for number in range(1, 5)]
    VoiceStore(tmp_path).put("omni", "alloy", known[0])
    seen: list[VoicePrompt | None] = []

    def work(voice: VoicePrompt) -> None:
        for _ in range(20):
            VoiceStore(tmp_path).put("omni", "alloy", voice)
            seen.append(VoiceStore(tmp_path).get("omni", "alloy"))

    threads = [threading.Thread(target=work, args=(voice,)) for voice in known * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160 and all(voice in known for voice in seen)
