"""Keys, origins, wrong addresses, large bodies: HTTP that is not about speech."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from polychoir.server.errors import STATUS, error_response
from polychoir.server.headers import encode_value
from polychoir.server.middleware import MAX_BODY_BYTES
from support.serving import Served, make_app, served


def error_of(response: Any) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "Bearer \xe9".encode("latin-1").decode("latin-1")}, 401),
        ({"xi-api-key": "wrong"}, 401),
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer  secret"}, 200),
        ({"xi-api-key": "secret"}, 200),
    ],
)
async def test_a_key_is_asked_for(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with served(make_app(tmp_path, api_key="secret")) as house:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        response = await house.client.post("/v1/audio/speech", json={"input": "Hi."}, headers=raw)
        assert response.status_code == status
        if status == 401:
            assert response.headers["www-authenticate"] == "Bearer"
            error = error_of(response)
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert "secret" not in response.text
        assert (await house.client.get("/metrics", headers=raw)).status_code == status


@pytest.mark.parametrize("public", [True, False])
async def test_lists_are_open_by_setting_and_health_always(tmp_path: Path, public: bool) -> None:
    async with served(make_app(tmp_path, api_key="secret", public_lists=public)) as house:
        for path in ("/v1/models", "/v1/models/fake", "/v1/audio/models", "/v1/audio/voices"):
            assert (await house.client.get(path)).status_code == (200 if public else 401)
            keyed = await house.client.get(path, headers={"authorization": "Bearer secret"})
            assert keyed.status_code == 200
        for path in ("/health", "/health/live", "/health/ready"):
            assert (await house.client.get(path)).status_code == 200


# -- origins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:5173", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:3000", True),
        ("http://ui.example:5173", False),
        ("http://localhost.evil.example", False),
        ("http://evil.example#localhost", False),
    ],
)
async def test_only_local_origins_by_default(house: Served, origin: str, allowed: bool) -> None:
    for fields in ({}, {"seed": "abc"}):
        response = await house.client.post(
            "/v1/audio/speech", json={"input": "Hi."} | fields, headers={"origin": origin}
        )
        assert response.headers.get("access-control-allow-origin") == (origin if allowed else None)
    if allowed:
        assert "x-polychoir-seed" in response.headers["access-control-expose-headers"]


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/audio/speech/", "/v1/audio/speech"),
        ("/v1/v1/audio/speech", "/v1/audio/speech"),
        ("/audio/speech", "/v1/audio/speech"),
        ("/v1//audio/speech", "/v1/audio/speech"),
        ("/V1/Audio/Speech", "/v1/audio/speech"),
        ("/v1/audio/speach", "/v1/audio/speech"),
        ("/models", "/v1/models"),
        ("/healthz", "/health"),
    ],
)
async def test_a_missed_address_is_told_the_right_one(house: Served, path: str, meant: str) -> None:
    response = await house.client.post(path, json={"input": "Hi."})
    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")
    assert f"Did you mean {meant}?" in error_of(response)["message"]


async def test_other_addresses_are_plainly_404(house: Served) -> None:
    response = await house.client.get("/etc/passwd")
    assert response.status_code == 404
    assert "Did you mean" not in error_of(response)["message"]


async def test_the_description_shows_every_field(house: Served) -> None:
    description = (await house.client.get("/openapi.json")).json()
    content = description["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]
    assert {"input", "voice", "num_step"} <= set(content["application/json"]["schema"]["properties"])
    assert (await house.client.get("/docs")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health/live", "/v1/models", "/metrics", "/docs"])
async def test_head_is_get_without_the_body(house: Served, path: str) -> None:
    response = await house.client.head(path)
    assert (response.status_code, response.content) == (200, b"")


# -- bodies ----------------------------------------------------------------------------------------


async def test_a_body_announced_too_large_is_not_read(house: Served) -> None:
    reads = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal reads
        reads += 1
        yield b" " * 1_000

    headers = {"content-type": "application/json", "content-length": str(MAX_BODY_BYTES + 1)}
    response = await house.client.post("/v1/audio/speech", content=body(), headers=headers)
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    assert response.headers["connection"] == "close"
    assert reads == 0


async def test_a_body_that_grows_too_large_is_cut_off(house: Served) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(3 * MAX_BODY_BYTES // 2**20):
            sent += 2**20
            yield b" " * 2**20

    headers = {"content-type": "application/json"}
    response = await house.client.post("/v1/audio/speech", content=body(), headers=headers)
    assert response.status_code == 413
    assert sent <= MAX_BODY_BYTES + 2**20
    assert house.app.state.house.door.inside == 0


async def test_a_large_body_within_the_bound_is_taken(house: Served) -> None:
    response = await house.speak("Hi.", ref_audio="A" * 20_000_000, ref_text="x")
    assert (response.status_code, error_of(response)["param"]) == (
        400,
        "ref_audio",
    )  # the model's own refusal
    assert error_of(response)["code"] == "unsupported_by_model"


# -- pieces ----------------------------------------------------------------------------------------


def test_every_code_of_our_errors_has_a_status() -> None:
    from polychoir import errors

    def below(kind: type[errors.PolychoirError]) -> set[str]:
        return {kind.code}.union(*(below(child) for child in kind.__subclasses__()))

    never_sent = {"invalid_setting", "model_load_error"}
    assert below(errors.PolychoirError) - never_sent <= set(STATUS)
    assert {"loading", "draining", "worker_lost"} <= set(STATUS)


def test_a_code_nobody_knows_is_a_bug_and_tells_nothing() -> None:
    from polychoir.errors import ModelLoadError

    response = error_response(ModelLoadError("/home/u/weights is torn"), "req_1")
    assert response.status_code == 500
    assert b"/home/u" not in bytes(response.body)
    assert b'"internal_error"' in bytes(response.body)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("plain, text:1", "plain, text:1"),
        ("Zoë", "Zo%C3%AB"),
        ("50%", "50%25"),
        ("a\r\nset-cookie: x", "a%0D%0Aset-cookie: x"),
        ("声", "%E5%A3%B0"),
    ],
)
def test_header_values_are_ascii_and_reversible(text: str, sent: str) -> None:
    from urllib.parse import unquote

    assert encode_value(text) == sent
    assert unquote(sent) == text
