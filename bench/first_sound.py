"""What the embedded voice costs through the whole server, beside the bare library, in one run.

    python bench/first_sound.py [--requests 200] [--json FILE]

Starts `polychoir serve` on a free port, sends N pcm requests at once, and calls the voice's own library from
as many threads as the machine has cores, over the same texts: five rounds of each in turn, and the ratio
pair by pair, since machines drift. Then the cost of each format's encoder, memory, and the judge's word error
rate over 20 answers if the test extra is installed. One JSON line last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from statistics import median

import httpx
import numpy as np

RATE = 24_000
WORDS = (
    *("apple", "bridge", "copper", "dragon", "ember", "falcon", "garden"),
    *("hammer", "island", "jungle", "kettle", "ladder", "magnet", "nickel"),
)
FORMATS = ("pcm", "wav", "flac", "mp3", "opus", "aac")


def texts(count: int) -> list[str]:
    """Short texts of one to three sentences, each with a word of its own."""
    frames = (
        "The ferry carried {n} boxes of {w} ware to the island before noon.",
        "Please ask about {w}. The next train leaves from platform {n}, and it will be late.",
        "Only one {w} was left. Nobody knew who owned it. They asked {n} people in the street.",
    )
    return [frames[i % 3].format(n=3 + i % 9, w=WORDS[i % len(WORDS)]) for i in range(count)]


class Bare:
    """The voice's own library, one instance for each of `threads` threads."""

    def __init__(self, threads: int) -> None:
        from hibari import Hibari

        self._voices = [Hibari() for _ in range(threads)]
        for voice in self._voices:
            voice("Warm up.")

    def rate(self, lines: list[str]) -> float:
        """Audio seconds per second over the texts, dealt out to the threads."""
        count = len(self._voices)

        def sing(k: int) -> float:
            return sum(len(self._voices[k](text, seed=1)) for text in lines[k::count]) / RATE

        started = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            total = sum(pool.map(sing, range(count)))
        return total / (time.perf_counter() - started)


class Server:
    """`polychoir serve` in a process of its own."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "polychoir", "serve", "--port", str(self.port)], stderr=subprocess.DEVNULL
        )
        while not self._ready():
            if self.process.poll() is not None or time.perf_counter() - started > 60:
                raise SystemExit("the server did not start")
            time.sleep(0.02)
        self.start_s = time.perf_counter() - started

    def _ready(self) -> bool:
        try:
            return httpx.get(self.url + "/health/ready", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def rss_mb(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def metric(self, name: str) -> float:
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


async def ask_all(server: Server, lines: list[str], audio_format: str = "pcm") -> tuple[float, list[bytes]]:
    """Send every request at once; seconds until the last answer, and the bodies in order.

    Plain sockets: client and server share the cores here, and a client library would cost a tenth of them.
    """

    async def ask(i: int, text: str) -> bytes:
        fields = {
            "model": "tts-1",
            "voice": "alloy",
            "input": text,
            "seed": i,
            "response_format": audio_format,
        }
        body = json.dumps(fields).encode()
        head = (
            "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"request {i} was not answered: {answer.decode()}")
        length = int(re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)[1])
        data = await reader.readexactly(length)
        writer.close()
        return data

    started = time.perf_counter()
    bodies = await asyncio.gather(*(ask(i, text) for i, text in enumerate(lines)))
    return time.perf_counter() - started, list(bodies)


def encoder_costs(samples: np.ndarray) -> dict[str, float]:
    """Milliseconds of one core for each second of audio, by format."""
    from polychoir.audio.encode import encode

    costs = {}
    for name in FORMATS:
        encode(samples[:RATE], name, RATE)
        started = time.process_time()
        encode(samples, name, RATE)
        costs[name] = (time.process_time() - started) * 1e3 / (len(samples) / RATE)
    return costs


def judged(lines: list[str], bodies: list[bytes]) -> float | None:
    """Word error rate over 20 of the answers; None where the judge is not installed."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        from support.judge import transcribe, word_error_rate
    except ImportError:
        return None
    picks = range(0, len(lines), max(1, len(lines) // 20))
    heard = " ".join(transcribe(np.frombuffer(bodies[i], "<i2") / np.float32(32768), RATE) for i in picks)
    return word_error_rate(" ".join(lines[i] for i in picks), heard)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines, threads = texts(options.requests), os.cpu_count() or 1
    bare, server = Bare(threads), Server()
    try:
        time.sleep(1)
        idle_mb = server.rss_mb()
        asyncio.run(ask_all(server, lines[:8]))
        bare_rates, served_rates, memory = [], [], []
        for _ in range(5):
            bare_rates.append(bare.rate(lines))
            wall, bodies = asyncio.run(ask_all(server, lines))
            served_rates.append(sum(map(len, bodies)) / 2 / RATE / wall)
            memory.append(round(server.rss_mb()))
        batches = server.metric("polychoir_batches_dispatched_total")
        average = server.metric("polychoir_avg_batch_size")
    finally:
        server.stop()
    ratios = [served / alone for served, alone in zip(served_rates, bare_rates, strict=True)]
    figures = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {threads} cores, CPython {platform.python_version()}",
        "requests_at_once": len(lines),
        "bare_audio_s_per_s": [round(rate, 1) for rate in bare_rates],
        "served_audio_s_per_s": [round(rate, 1) for rate in served_rates],
        "served_over_bare": [round(ratio, 3) for ratio in ratios],
        "served_over_bare_median": round(median(ratios), 3),
        "start_to_ready_s": round(server.start_s, 2),
        "idle_mb": round(idle_mb),
        "mb_after_each_round": memory,
        "batches_dispatched": batches,
        "avg_batch_size": round(average, 2),
        "encoder_ms_per_audio_s": {
            name: round(cost, 2)
            for name, cost in encoder_costs(
                np.frombuffer(b"".join(bodies[:20]), "<i2") / np.float32(32768)
            ).items()
        },
        "word_error_rate_of_20": judged(lines, bodies),
    }
    for name, value in figures.items():
        print(f"{name:28} {value}")
    line = json.dumps(figures)
    if options.json:
        options.json.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
