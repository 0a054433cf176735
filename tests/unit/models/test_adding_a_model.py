"""docs/adding-a-model.md, run: its code is the fake model's, and a foreign package can add a model."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import polychoir.models.fake as fake_module
from polychoir.errors import ModelLoadError, SettingError
from polychoir.models.registry import get_plugin, open_model, plugin_names
from polychoir.models.tones import heard
from polychoir.types import ModelOptions
from support.conformance import check_alone_equals_together, check_refusals, speech_request

ROOT = Path(__file__).parents[3]
FAKE = Path(fake_module.__file__)
TEXTS = ["One short line.", "A second, somewhat longer line of text.", "Drei.", "四行目です。"]


def code_blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", (ROOT / "docs/adding-a-model.md").read_text(), re.M | re.S)


def test_the_code_in_the_page_is_the_code_of_the_fake_model():
    excerpts = [block for block in code_blocks("python") if "support.conformance" not in block]
    assert len(excerpts) >= 4
    source = FAKE.read_text()
    for block in excerpts:
        assert block in source
    (toml,) = code_blocks("toml")
    assert toml.splitlines()[1] in (ROOT / "pyproject.toml").read_text()


def test_the_fake_model_stays_small():
    assert len(FAKE.read_text().splitlines()) < 100


@pytest.fixture
def foreign_package(tmp_path, monkeypatch):
    """A distribution of somebody else's whose plug-in is called `chimes`."""
    shutil.copy(FAKE, tmp_path / "chimes_tts.py")
    metadata = tmp_path / "chimes_tts-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: chimes-tts\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[polychoir.models]\nchimes = chimes_tts:plugin\nbroken = chimes_tts:nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


async def test_a_foreign_package_adds_a_model(foreign_package):
    assert {"chimes", "fake", "hibari", "omnivoice"} <= set(plugin_names())
    model = open_model("chimes", ModelOptions(name="bells", extra={"fake_step_ms": 0.5}))
    assert (model.info.name, model.settings.fake_step_ms) == ("bells", 0.5)
    await check_alone_equals_together(model, TEXTS, tolerance=0.0)
    await check_refusals(model)


def test_a_broken_plug_in_is_named(foreign_package):
    with pytest.raises(ModelLoadError, match="'broken' cannot be imported"):
        get_plugin("broken")
    with pytest.raises(ModelLoadError, match=r"knows the model 'no/such'.*'broken' cannot be imported"):
        open_model("no/such", ModelOptions())


def test_an_unknown_model_gets_a_suggestion():
    with pytest.raises(ModelLoadError, match="did you mean 'hibari'"):
        open_model("hibary", ModelOptions())


def test_a_waveform_spells_its_text():
    model = open_model("fake", ModelOptions())
    text = "Ärger, 42! 好"
    chunk = model.frontend.prepare(speech_request(text, speed=1.5), None).chunks[0]
    assert chunk.work.tokens == 4 * len(text)
    runner_end = model._end(row_of(chunk))
    assert heard(runner_end.samples, speed=1.5) == text


def row_of(chunk):
    from polychoir.types import PlannedRow

    return PlannedRow(0, 0, chunk)


def test_a_share_of_rows_fails_by_seed():
    model = open_model("fake", ModelOptions(extra={"fake_fail_rate": 0.5}))
    ends = []
    for seed in range(200):
        chunk = model.frontend.prepare(speech_request("x", seed=seed), None).chunks[0]
        ends.append(model._end(row_of(chunk)).error is not None)
    assert 70 < sum(ends) < 130


@pytest.mark.parametrize("name", ["fake", "hibari"])
@pytest.mark.parametrize(("setting", "value"), [("device", "cuda"), ("dtype", "float16")])
def test_a_cpu_model_refuses_a_place_it_cannot_run_in(name, setting, value):
    with pytest.raises(SettingError, match=name) as caught:
        open_model(name, ModelOptions(**{setting: value}))
    assert caught.value.param == setting
    open_model(name, ModelOptions(device="cpu", dtype="float32"))


def test_loading_says_what_auto_came_to(caplog):
    with caplog.at_level("INFO", logger="polychoir"):
        open_model("fake", ModelOptions(name="bells")).load(lambda: None).close()
    assert "bells: cpu, float32" in caplog.messages


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"model_type": "llama"}', "says model_type 'llama'"),
        ("{", "is not JSON"),
        ("[]", "not a JSON object"),
    ],
)
def test_a_folder_that_nobody_claims_is_described(tmp_path, content, said):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=said):
        open_model(str(tmp_path), ModelOptions())
