"""`polychoir doctor`: the machine, each model's costs with where they come from, the sizes with why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polychoir import __version__
from polychoir.doctor import place
from polychoir.doctor.place import Gpu, devices, find_gpus, likely_kind, parse_gpus
from polychoir.doctor.section import Fact, Section, as_record, as_text

Run = Callable[..., Any]


@pytest.fixture
def doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """The facts of `doctor --json`: section -> fact -> value and why."""
    monkeypatch.setenv("POLYCHOIR_FAKE_STEP_MS", "2")
    monkeypatch.setenv("POLYCHOIR_FAKE_US_PER_TOKEN", "4")

    def ask(*arguments: str) -> dict[str, Any]:
        code, out, err = run("doctor", *arguments, "--json")
        assert (code, err) == (0, "")
        record: dict[str, Any] = json.loads(out)
        return record

    return ask


def test_nothing_is_loaded_or_measured_unasked(doctor: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    record = doctor("fake")
    assert list(record) == ["versions", "devices", "model fake"]
    assert record["versions"]["polychoir"]["value"] == __version__
    model = record["model fake"]
    assert model["steps cost as"]["value"] == "default for its class"
    assert "--recalibrate" in model["steps cost as"]["why"]
    assert not (tmp_path / "data" / "calibration").exists()


def test_what_is_measured_is_kept_and_read_again(doctor: Callable[..., dict[str, Any]]) -> None:
    measured = doctor("fake", "--recalibrate")["model fake"]
    assert measured["steps cost as"]["value"] == "measured now"
    host, slope = measured["host_s"]["value"], measured["per_token_s"]["value"]
    assert (host, slope) == (pytest.approx(2e-3, rel=0.2), pytest.approx(4e-6, rel=0.2))
    # tokens / (host + slope * tokens) reaches 90 % of 1 / slope where slope * tokens is nine times the host.
    assert measured["knee_tokens"]["value"] == pytest.approx(9 * host / slope, abs=1)
    assert measured["tokens_per_s"]["value"] == pytest.approx(0.9 / slope, rel=1e-3)
    again = doctor("fake")["model fake"]
    assert again["steps cost as"]["value"].startswith("measured 20")
    assert {name: fact["value"] for name, fact in again.items() if name != "steps cost as"} == {
        name: fact["value"] for name, fact in measured.items() if name != "steps cost as"
    }


def test_a_request_alone_takes_its_steps(doctor: Callable[..., dict[str, Any]]) -> None:
    model = doctor("fake", "--recalibrate")["model fake"]
    tokens = 4 * 88  # the sample text, at the fake model's tokens for each character
    step = model["host_s"]["value"] + model["per_token_s"]["value"] * tokens
    assert model["request_alone_s"]["value"] == pytest.approx(8 * step)


@pytest.mark.parametrize(
    ("arguments", "name", "value", "why"),
    [
        ((), "max_num_batched_tokens", 8_192, "the model's own figure; reaches 94.2% of"),
        (("--max-num-batched-tokens", "500"), "max_num_batched_tokens", 500, "the setting; reaches 50.0% of"),
        ((), "max_num_seqs", 256, "default of iterative models"),
        (("--max-num-seqs", "8"), "max_num_seqs", 8, "the setting"),
        (("--no-batch",), "max_num_seqs", 1, "--no-batch"),
        ((), "max_resident_seqs", 1_024, "4 times max_num_seqs"),
        (("--max-resident-seqs", "300"), "max_resident_seqs", 300, "the setting"),
        (("--no-batch",), "max_resident_seqs", 1, "--no-batch"),
        ((), "max_concurrent_plans", 1, "as many steps as this model has use for"),
    ],
)
def test_every_size_says_why(
    doctor: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    name: str,
    value: int,
    why: str,
) -> None:
    from polychoir.doctor import speed
    from polychoir.engine.cost import StepCost

    monkeypatch.setattr(speed, "assumed", lambda *_: StepCost(1e-3, 2e-6))
    fact = doctor("fake", *arguments)["model fake"][name]
    assert fact["value"] == value
    assert fact["why"].startswith(why)


def test_a_one_shot_voice_tells_seconds_a_character_and_thread(
    doctor: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hibari", reason="the embedded voice is not installed")
    for name in ("POLYCHOIR_FAKE_STEP_MS", "POLYCHOIR_FAKE_US_PER_TOKEN"):
        monkeypatch.delenv(name)
    model = doctor("hibari", "--max-concurrent-plans", "2", "--recalibrate")["model hibari"]
    assert (model["lanes"]["value"], model["max_concurrent_plans"]["why"]) == (2, "the setting")
    assert model["max_num_seqs"]["why"] == "a plan of this model holds no more"
    a_character = model["per_character_s"]
    assert a_character["why"] == "a character, on one of 2 threads"
    assert model["request_alone_s"]["value"] == pytest.approx(88 * a_character["value"])


def test_several_models_each_have_a_section(run: Run) -> None:
    code, out, _ = run("doctor", "a=fake", "b=fake")
    assert code == 0
    assert "\nmodel a\n" in out and "\nmodel b\n" in out
    assert "  polychoir " in out


def test_a_model_that_cannot_be_served_is_said_and_is_exit_code_1(run: Run) -> None:
    code, out, _ = run("doctor", "/no/such/folder")
    assert code == 1
    assert "not ready  no installed plug-in knows the model '/no/such/folder'" in out


# -- the machine ---------------------------------------------------------------------------------


def test_cards_are_read_from_what_nvidia_smi_says() -> None:
    answer = "NVIDIA H200, 143771, 570.1\nNVIDIA, with a comma, 24564, 570.1\nNVIDIA GB10, [N/A], 580.9\n\n"
    assert parse_gpus(answer) == (
        Gpu("NVIDIA H200", 143_771, "570.1"),
        Gpu("NVIDIA, with a comma", 24_564, "570.1"),
        Gpu("NVIDIA GB10", 0, "580.9"),
    )
    assert parse_gpus("") == ()


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho 'No devices were found'\n", "not a program"]
)
def test_an_nvidia_smi_that_does_not_answer_is_no_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(script)
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus() == ()


def test_an_nvidia_smi_that_answers_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 570.1'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus() == (Gpu("NVIDIA H200", 143_771, "570.1"),)


def test_without_nvidia_smi_there_is_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus() == ()
    assert devices(()).facts[1] == Fact("cuda", "none", "as nvidia-smi tells")


@pytest.mark.parametrize(
    ("device", "kind"),
    [("auto", "large_gpu"), ("cpu", "cpu"), ("cuda", "large_gpu"), ("cuda:1", "small_gpu"), ("mps", "cpu")],
)
def test_a_class_is_guessed_from_the_setting_and_the_cards(device: str, kind: str) -> None:
    cards = (Gpu("a", place.LARGE_MIB, ""), Gpu("b", 24_000, ""))
    assert likely_kind(device, cards) == kind
    assert likely_kind(device, ()) == "cpu"


# -- sections ------------------------------------------------------------------------------------


def test_a_section_reads_as_a_table_and_as_a_record() -> None:
    sections = [
        Section("one", (Fact("a", 1), Fact("long_s", 0.000123456, "why"))),
        Section("two", (Fact("b", None),)),
    ]
    assert as_text(sections) == "one\n  a       1\n  long_s  0.0001235  why\n\ntwo\n  b  unknown"
    assert as_record(sections) == {
        "one": {"a": {"value": 1, "why": ""}, "long_s": {"value": 0.000123456, "why": "why"}},
        "two": {"b": {"value": None, "why": ""}},
    }
