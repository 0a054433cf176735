"""Text that is no text: half of a surrogate pair comes in as an escape and must not break an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polychoir.errors import InvalidRequest, PolychoirError, SettingError, VoiceNotFound
from polychoir.server.body import _parse
from polychoir.server.errors import error_response
from polychoir.server.headers import encode_list, encode_value
from support.serving import Served, make_app

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
BROKEN_TEXT = st.builds("{}{}{}".format, ANY_TEXT, st.sampled_from(["\ud800", "\udbff", "\udfff"]), ANY_TEXT)


def told(error: PolychoirError) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(bytes(error_response(error, "req_1").body).decode("utf-8"))
    return answer["error"]


@given(
    names=st.lists(ANY_TEXT | BROKEN_TEXT, max_size=3),
    value=st.recursive(
        BROKEN_TEXT, lambda inner: st.lists(inner, max_size=2) | st.tuples(inner), max_leaves=3
    ),
    known=st.sampled_from(["voice", "model", "input", "language", "seed"]),
)
def test_half_a_pair_anywhere_is_400_with_the_name(names: list[str], value: Any, known: str) -> None:
    pairs = [*((name, 1) for name in names), (known, {"deep": value})]
    broken = ", ".join(f"{json.dumps(name)}: {json.dumps(content)}" for name, content in pairs)
    lone = any(0xD800 <= ord(char) <= 0xDFFF for char in json.dumps(pairs, ensure_ascii=False))
    with pytest.raises(InvalidRequest) as caught:
        _parse(f"{{{broken}}}".encode())
    error = told(caught.value)
    assert error["code"] in ("invalid_value", "missing_value")
    if lone:
        assert isinstance(error["param"], str)


@given(message=ANY_TEXT | BROKEN_TEXT, param=ANY_TEXT | BROKEN_TEXT)
def test_every_error_can_be_sent(message: str, param: str) -> None:
    error = told(VoiceNotFound(message, param=param))
    assert error["param"] == param.encode("utf-8", "replace").decode()


@given(texts=st.lists(ANY_TEXT | BROKEN_TEXT, min_size=1, max_size=5))
def test_every_list_can_be_a_header_and_read_back(texts: list[str]) -> None:
    line = encode_list(texts)
    assert line.isascii() and line.isprintable()
    assert [unquote(part) for part in line.split(", ")] == [
        text.encode("utf-8", "replace").decode() for text in texts
    ]
    assert encode_value("".join(texts)).isascii()


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (rb'{"\ud800":1,"\ud800":2}', "?"),
        (rb'{"input":"Hi.","x\ud800y":1}', "x?y"),
        (rb'{"input":"Hi.","voice":"\udc00"}', "voice"),
        (rb'{"input":"Hi.","model":"\ud83d"}', "model"),
        (rb'{"input":"a\uDfffb"}', "input"),
        (rb'{"input":"Hi.","other":{"\ud800":[1]}}', "other"),
        (rb'{"input":"Hi.","voice":{"id":"\ud800"}}', "voice"),
    ],
)
async def test_over_http(house: Served, content: bytes, param: str) -> None:
    headers = {"content-type": "application/json", "x-request-id": "mine"}
    answer = await house.client.post("/v1/audio/speech", content=content, headers=headers)
    assert (answer.status_code, answer.headers["x-request-id"]) == (400, "mine")
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param)


async def test_a_whole_pair_is_text(house: Served) -> None:
    content = rb'{"input":"Hi \ud83d\ude00 there.","x\ud83d\ude00":1}'
    answer = await house.client.post(
        "/v1/audio/speech", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200
    assert "unknown_field:x%F0%9F%98%80" in answer.headers["x-polychoir-warnings"]


async def test_paths_and_queries_too(house: Served) -> None:
    for path in ("/v1/models/%ED%A0%80", "/v1/audio/voices?model=%ED%A0%80", "/v1/%ED%A0%80"):
        answer = await house.client.get(path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")


async def test_a_comma_in_a_warning_does_not_split_it(house: Served) -> None:
    answer = await house.speak(**{"mood, happy": 1, "other": 2})
    assert answer.headers["x-polychoir-warnings"].split(", ") == [
        "unknown_field:mood%2C happy",
        "unknown_field:other",
    ]


def test_a_model_cannot_be_served_under_such_a_name(tmp_path: Path) -> None:
    """As a command line in another encoding brings it."""
    with pytest.raises(SettingError) as caught:
        make_app(tmp_path, model=("caf\udce9=fake",))
    assert caught.value.param == "model"
