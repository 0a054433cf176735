"""Models, voices, health and metrics: shapes that clients and monitors read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.serving import Served, make_app, served, until


async def test_models_have_openais_shape(house: Served) -> None:
    card = (await house.client.get("/v1/models")).json()["data"][0]
    assert card["object"] == "model"
    assert isinstance(card["created"], int)
    assert card["owned_by"] == "polychoir"


async def test_openais_names_lead_to_the_default_model(house: Served) -> None:
    for name in ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"):
        response = await house.client.get(f"/v1/models/{name}")
        assert response.status_code == 200
        assert (response.json()["id"], response.json()["root"]) == (name, "fake")
        assert (await house.speak(model=name)).headers["x-polychoir-model"] == "fake"
    missing = await house.client.get("/v1/models/nobody/else")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_two_models_are_chosen_by_name_and_the_first_is_the_default(tmp_path: Path) -> None:
    async with served(make_app(tmp_path, model=("one=fake", "two=fake"))) as house:
        ids = [model["id"] for model in (await house.client.get("/v1/models")).json()["data"]]
        assert len(ids) == 2
        for name in ids:
            assert (await house.client.get(f"/v1/models/{name}")).json()["id"] == name
            assert (await house.speak(model=name)).headers["x-polychoir-model"] == name
        assert (await house.speak()).headers["x-polychoir-model"] == ids[0]


async def test_every_listed_voice_speaks(house: Served) -> None:
    entries = (await house.client.get("/v1/audio/voices")).json()["voices"]
    assert {"auto", "default", "tones", "alloy", "marin"} <= {entry["id"] for entry in entries}
    for entry in entries:
        assert entry["name"]
        assert entry["voice_id"] == entry["id"]
        assert (await house.speak(voice=entry["id"])).status_code == 200
    of_model = await house.client.get("/v1/audio/voices", params={"model": "fake"})
    assert of_model.json()["voices"] == entries
    assert (await house.client.get("/v1/audio/voices", params={"model": "none"})).status_code == 404


async def test_audio_models_tell_what_can_be_asked(house: Served) -> None:
    (model,) = (await house.client.get("/v1/audio/models")).json()["models"]
    assert (model["id"], model["kind"]) == ("fake", "iterative")
    assert "num_step" in model["fields"]


async def test_health_tells_the_batching(tmp_path: Path) -> None:
    async with served(make_app(tmp_path, max_num_seqs=7, queue_limit=11)) as house:
        await house.speak()
        await until(lambda: house.speaker.engine.stats().sequences_finished == 1)
        told = (await house.client.get("/health")).json()
        assert (told["status"], told["ready"], told["requests_inside"]) == ("ready", True, 0)
        batching = told["models"]["fake"]["batching"]
        assert (batching["enabled"], batching["max_num_seqs"], batching["queue_limit"]) == (True, 7, 11)
        assert told["models"]["fake"]["state"]["batches_dispatched"] == 8
    async with served(make_app(tmp_path, batch=False)) as house:
        batching = (await house.client.get("/health")).json()["models"]["fake"]["batching"]
        assert (batching["enabled"], batching["max_num_seqs"]) == (False, 1)


async def scrape(house: Served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = (await house.client.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_move_with_the_work(tmp_path: Path) -> None:
    async with served(make_app(tmp_path, fake_step_ms=1.0)) as house:
        before = await scrape(house)
        await asyncio.gather(*(house.speak(f"Number {i}.") for i in range(16)))
        await house.speak(seed="abc")
        await until(lambda: house.speaker.engine.stats().sequences_finished == 16)
        after = await scrape(house)

    def grown(name: str, **labels: str) -> float:
        key = (f"polychoir_{name}", tuple(sorted({"model": "fake", **labels}.items())))
        return after[key] - before.get(key, 0.0)

    assert grown("sequences_finished_total") == 16
    assert grown("steps_total") == grown("rows_dispatched_total") == 16 * 8
    assert 8 <= grown("batches_dispatched_total") < 16 * 8
    assert after["polychoir_avg_batch_size", (("model", "fake"),)] > 1
    assert grown("requests_total", status="2xx") == 16
    assert after["polychoir_requests_total", (("model", "none"), ("status", "4xx"))] == 1
    for name in ("queue_seconds", "first_byte_seconds", "request_seconds", "audio_seconds"):
        assert grown(f"{name}_count") == 16
        assert grown(f"{name}_sum") >= 0
    assert after["process_resident_memory_bytes", ()] > 0


async def test_clients_cannot_make_series_and_a_scrape_is_quick_under_load(tmp_path: Path) -> None:
    async with served(make_app(tmp_path, fake_step_ms=2.0)) as house:
        for refused in ({"voice": "nobody"}, {"model": "nobody"}, {}):
            await house.speak(**refused)
        before = set(await scrape(house))
        load = [asyncio.create_task(house.speak(f"Line {i}.", num_step=32)) for i in range(32)]
        for i in range(100):
            await house.speak(voice=f"voice-{i}")
            await house.speak(model=f"model-{i}")
        for i in range(50):
            await house.client.get(f"/v1/path-{i}")
        started = time.monotonic()
        during = set(await scrape(house))
        assert time.monotonic() - started < 0.25
        assert {answer.status_code for answer in await asyncio.gather(*load)} == {200}
    assert during == before
