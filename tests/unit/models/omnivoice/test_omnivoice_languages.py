from __future__ import annotations

import pytest

from polychoir.models.omnivoice import languages


@pytest.mark.parametrize(
    ("written", "index"),
    [
        ("en", "en"), ("EN", "en"), ("English", "en"), (" english ", "en"), ("en-GB", "en"),
        ("zh_Hant_TW", "zh"), ("pt-BR", "pt"), ("eng", "en"), ("cmn", "zh"), ("Mandarin", "zh"),
        ("yue", "yue"), ("ar", "arb"),
        ("iw", "he"), ("Norwegian Bokmål", "nb"), ("norwegian bokma\u030al", "nb"),
    ],
)  # fmt: skip
def test_known(written: str, index: str) -> None:
    assert languages.find(written) == index


@pytest.mark.parametrize("written", ["klingon", "xx", "e", "../en", "en\x00", "-", "_GB"])
def test_unknown(written: str) -> None:
    assert languages.find(written) is None
    assert languages.is_said(written)


@pytest.mark.parametrize("written", ["", " ", "none", "None", "auto"])
def test_unsaid(written: str) -> None:
    assert languages.find(written) is None
    assert not languages.is_said(written)


def test_every_alias_leads_to_a_language() -> None:
    assert set(languages._ALIASES.values()) <= languages.names().keys()
    assert not languages._ALIASES.keys() & languages.names().keys()
