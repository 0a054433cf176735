from __future__ import annotations

from pathlib import Path

import pytest

from polychoir.config import Settings, load_settings
from polychoir.config.legacy import MEANINGLESS_ENVIRONMENT
from polychoir.config.sources import aliases
from polychoir.errors import SettingError


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_flag_beats_environment_beats_older_name_beats_file_beats_default(tmp_path: Path) -> None:
    Path("polychoir.toml").write_text("port = 1\n")
    older = {"OMNIVOICE_PORT": "2"}
    ours = {"POLYCHOIR_PORT": "3"}
    ports = [
        load_settings({"port": 4}, environment=older | ours),
        load_settings(environment=older | ours),
        load_settings(environment=older),
        load_settings(environment={}),
    ]
    assert [loaded.settings.port for loaded in ports] == [4, 3, 2, 1]
    Path("polychoir.toml").unlink()
    assert load_settings(environment={}).settings.port == Settings().port


@pytest.mark.parametrize("name", [*Settings.model_fields, *aliases()])
def test_every_setting_and_alias_is_known_to_every_source(name: str) -> None:
    """A value of the wrong type is refused as a value, so the name was understood."""
    canonical = aliases().get(name, name)
    impossible = "\x00=" if canonical in ("model", "adapter", "allowed_origins") else "["
    for flags, environment in (
        ({name: impossible}, {}),
        ({}, {"POLYCHOIR_" + name.upper(): impossible}),
    ):
        try:
            loaded = load_settings(flags, environment=environment)
        except SettingError as error:
            assert canonical.startswith("ssl_") or error.param == canonical, error
        else:
            assert str(getattr(loaded.settings, canonical)) != str(getattr(Settings(), canonical))


@pytest.mark.parametrize("key", ["max-num-seqs", "max_num_seqs", "batch_max_size", "max-batch-size"])
def test_file_keys_take_hyphens_and_aliases(key: str) -> None:
    Path("polychoir.toml").write_text(f"{key} = 5\n")
    assert load_settings(environment={}).settings.max_num_seqs == 5


def test_unknown_names_are_errors_with_the_nearest_one() -> None:
    with pytest.raises(SettingError, match="POLYCHOIR_QUEUE_LIMT; did you mean POLYCHOIR_QUEUE_LIMIT"):
        load_settings(environment={"POLYCHOIR_QUEUE_LIMT": "1"})
    with pytest.raises(SettingError, match="--prot; did you mean --port"):
        load_settings({"prot": 1}, environment={})
    Path("polychoir.toml").write_text("max_seqs = 1\n")
    with pytest.raises(SettingError, match=r"`max_seqs` in polychoir.toml; did you mean max_num_seqs"):
        load_settings(environment={})


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(SettingError, match="POLYCHOIR_ZZZZ; `polychoir serve --help`"):
        load_settings(environment={"POLYCHOIR_ZZZZ": "1"})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"POLYCHOIR_PORT": "70000"}, "POLYCHOIR_PORT: .*65535"),
        ({"POLYCHOIR_PORT": "http"}, "POLYCHOIR_PORT: .*integer"),
        ({"POLYCHOIR_BATCH": "maybe"}, "POLYCHOIR_BATCH: .*boolean"),
        ({"POLYCHOIR_DEVICE": "gpu"}, "POLYCHOIR_DEVICE: 'gpu' is none of"),
        ({"POLYCHOIR_API_WORKERS": "2"}, "POLYCHOIR_API_WORKERS: .*not built yet"),
        ({"POLYCHOIR_WORKERS": "0"}, "POLYCHOIR_WORKERS: must be auto or at least 1"),
        ({"POLYCHOIR_MODEL": "x,x"}, "POLYCHOIR_MODEL: two models"),
    ],
)
def test_a_bad_value_is_reported_with_where_it_was_set(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load_settings(environment=environment)


def test_empty_environment_values_are_not_given() -> None:
    assert load_settings(environment={"POLYCHOIR_API_KEY": "", "OMNIVOICE_PORT": ""}).settings.api_key is None


def test_lists_are_comma_separated_in_the_environment() -> None:
    loaded = load_settings(environment={"POLYCHOIR_MODEL": "hibari, t=fake"})
    assert loaded.settings.model == ("hibari", "t=fake")


def test_kubernetes_service_links_are_not_settings() -> None:
    environment = {
        "POLYCHOIR_PORT": "tcp://10.0.0.1:8000",
        "POLYCHOIR_SERVICE_HOST": "10.0.0.1",
        "POLYCHOIR_SERVICE_PORT_HTTP": "8000",
        "POLYCHOIR_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(environment=environment).settings == Settings()


def test_older_names_are_mapped_with_one_notice_each() -> None:
    loaded = load_settings(
        environment={
            "OMNIVOICE_DEFAULT_NUM_STEP": "16",
            "OMNIVOICE_CORS_ALLOW_ORIGINS": '["https://a.example", "https://b.example"]',
            "OMNIVOICE_SEED": "3",
            "OMNIVOICE_SOMETHING": "else",
        }
    )
    assert loaded.settings.num_step == 16
    assert loaded.settings.allowed_origins == ("https://a.example", "https://b.example")
    assert loaded.notices == (
        "OMNIVOICE_DEFAULT_NUM_STEP is read as POLYCHOIR_NUM_STEP",
        "OMNIVOICE_CORS_ALLOW_ORIGINS is read as POLYCHOIR_ALLOWED_ORIGINS",
        "OMNIVOICE_SEED has no meaning here: a seed belongs to a request",
        "OMNIVOICE_SOMETHING is not known here and is not used",
    )


def test_older_workers_were_api_processes() -> None:
    loaded = load_settings(environment={"OMNIVOICE_WORKERS": "1"})
    assert (loaded.settings.api_workers, loaded.settings.workers) == (1, "auto")


def test_older_settings_without_a_feature_stop_the_start_too() -> None:
    with pytest.raises(SettingError, match=r"OMNIVOICE_BATCH_TIMEOUT_MS: .*not built yet"):
        load_settings(environment={"OMNIVOICE_BATCH_TIMEOUT_MS": "50"})


def test_no_name_is_both_a_setting_and_without_meaning() -> None:
    assert not set(MEANINGLESS_ENVIRONMENT) & (set(Settings.model_fields) | set(aliases()))


def test_older_width_flags_are_noticed() -> None:
    loaded = load_settings({"cuda_graph_max_width": "512"}, environment={})
    assert loaded.notices == (
        "--cuda-graph-max-width has no meaning here: buckets are token counts here, not widths",
    )


def test_two_names_of_one_setting_may_not_disagree() -> None:
    with pytest.raises(SettingError, match="--num-step and --default-num-step say different things"):
        load_settings({"num_step": 8, "default_num_step": 16}, environment={})


def test_a_named_file_must_be_readable_toml(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"cannot read nowhere.toml: No such file"):
        load_settings(environment={"POLYCHOIR_CONFIG": "nowhere.toml"})
    Path("bad.toml").write_text("port = = 1")
    with pytest.raises(SettingError, match=r"bad.toml is not TOML"):
        load_settings(config_file=Path("bad.toml"), environment={})
    Path("bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="is not TOML"):
        load_settings(config_file=Path("bytes.toml"), environment={})
    Path("deep.toml").write_text("a = " + "[" * 20_000)
    with pytest.raises(SettingError, match=r"deep.toml is nested too deeply"):
        load_settings(config_file=Path("deep.toml"), environment={})
    Path("large.toml").write_text("#" * 1_000_001)
    with pytest.raises(SettingError, match="larger than"):
        load_settings(config_file=Path("large.toml"), environment={})
