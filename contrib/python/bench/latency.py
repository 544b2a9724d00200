"""How long the gateway takes to answer: p50 and p99 in milliseconds.

    python bench/latency.py [--rate 200] [--seconds 30] [--jobs 20]

Reads come at a steady rate over eight connections, each timed from when it was due, so that a slow
answer delays nobody unseen. Then plans and jobs one after the other, a job through HTTP and by the
command line in turns. Needs the model and images of this repository; $SOUK_BIN or PATH has the
program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import souk

DIGITS = Path(__file__).parents[3] / "testnet" / "models" / "digits"
CONNECTIONS = 8
READS = [
    "/v1/status",
    "/v1/accounts/me",
    "/v1/market/asks",
    "/v1/market/classes",
    "/v1/providers",
    "/v1/validators",
    "/v1/jobs",
    "/v1/leases",
]


def told(name: str, seconds: list[float]) -> None:
    """One line."""
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    middle = statistics.median(ordered)
    print(f"{name}: p50 {middle * 1e3:.2f} ms, p99 {last * 1e3:.2f} ms, {len(ordered)} times")


async def reads(url: str, token: str, rate: float, seconds: float) -> list[float]:
    """How long each answer took from when it was due."""
    place = urlsplit(url)
    due: asyncio.Queue[tuple[float, str] | None] = asyncio.Queue()
    took: list[float] = []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        while (asked := await due.get()) is not None:
            at, path = asked
            lines = [f"GET {path} HTTP/1.1", f"Host: {place.netloc}"]
            lines += [f"Authorization: Bearer {token}", "", ""]
            writer.write("\r\n".join(lines).encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"{path}: {answer[:200]!r}")
            length = next(
                int(line.split(b":")[1])
                for line in answer.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            took.append(time.perf_counter() - at)
        writer.close()

    workers = [asyncio.create_task(connection()) for _ in range(CONNECTIONS)]
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        at = began + number / rate
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        due.put_nowait((at, READS[number % len(READS)]))
    for _ in workers:
        due.put_nowait(None)
    await asyncio.gather(*workers)
    return took


def main() -> None:
    """Measure all of it on a market of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--jobs", type=int, default=20)
    given = parser.parse_args()
    images: Any = np.load(DIGITS / "images.npy")
    model = DIGITS / "digits.onnx"
    with souk.testnet() as net, tempfile.TemporaryDirectory() as folder:
        tokens = json.loads((Path(net.folder) / "buyer" / "http-tokens.json").read_text())
        took = asyncio.run(reads(net.url, tokens["read"], given.rate, given.seconds))
        told(f"reads, {given.rate:.0f} a second", took)
        net.run(model, {"images": images}, budget=9)
        plans: list[float] = []
        first: list[float] = []
        whole: list[float] = []
        command_line: list[float] = []
        for number in range(given.jobs):
            inputs: dict[str, Any] = {"images": images + np.float32(number) / 1024}
            began = time.perf_counter()
            net.plan(model, inputs)
            plans.append(time.perf_counter() - began)
            began = time.perf_counter()
            job = net.submit(model, inputs, budget=9)
            next(iter(job.events()))
            first.append(time.perf_counter() - began)
            job.result()
            whole.append(time.perf_counter() - began)
            np.save(Path(folder) / "images.npy", inputs["images"] + np.float32(1))
            command = [souk.find_binary(), "--dir", str(net.folder), "submit", str(model)]
            command += ["-i", "images=images.npy", "-o", "out", "--budget", "9"]
            began = time.perf_counter()
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            command_line.append(time.perf_counter() - began)
        told("plan", plans)
        told("job, to its first event", first)
        told("job, to its outputs", whole)
        told("the same by the command line", command_line)
        ratio = statistics.median(whole) / statistics.median(command_line)
        print(f"through HTTP it takes {ratio:.2f} times the command line's time")


if __name__ == "__main__":
    main()
