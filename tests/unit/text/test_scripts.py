"""Letters by script, from their names."""

from __future__ import annotations

import pytest

from polychoir.text import scripts


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("aÉßªøŁ", "Latin"),
        ("Ａｚ", "Latin"),
        ("жЁҐ", "Cyrillic"),
        ("λΩἀ", "Greek"),
        ("你𠀀㐀豈", "Han"),
        ("かっ", "Hiragana"),
        ("カッー", "Katakana"),
        ("ｶ", "Katakana"),
        ("한ㄱᄀ", "Hangul"),
        ("שלום", "Hebrew"),
        ("مرحباﷺ", "Arabic"),
        ("क्षमा", "Devanagari"),
        ("ไทยำ", "Thai"),
        ("ລາວ", "Lao"),
        ("ខ្មែរ", "Khmer"),
        ("မြန်မာ", "Myanmar"),
        ("ქართულიႠ", "Georgian"),
        ("հայ", "Armenian"),
        ("አማርኛ", "Ethiopic"),
        ("தமிழ்", "Tamil"),
        ("བོད", "Tibetan"),
        ("ᚠᚢ", "Runic"),
        ("Ꮳ", "Cherokee"),
        ("ᐃᓄ", "Canadian Aboriginal"),
        ("ꀀ", "Yi"),
    ],
)
def test_one_script(text: str, script: str) -> None:
    assert list(scripts(text)) == [script]


def test_counts_in_order_and_only_letters() -> None:
    assert scripts("Hi, 你好! 12 ok 👍") == {"Latin": 4, "Han": 2}
    assert scripts("1 + 1 = 2 …") == {}
