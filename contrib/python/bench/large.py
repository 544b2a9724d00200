"""A large array in and out, by this client and by the command line: seconds, and their ratio.

    python bench/large.py [--megabytes 100] [--rounds 5] [--most 1.5]

Both run the same model of one operator on the same real device, each round with bytes that nobody
has seen. The command line reads its array from a file and writes one; the client has it in memory,
and gets one there. Each has a market of its own, as a gateway and a command line that serve
tensors of one account at the same time are taken for each other. Needs the package onnx; $SOUK_BIN
or PATH has the program.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import souk


def model() -> bytes:
    """One operator that gives back as many bytes as it takes."""
    from onnx import TensorProto, helper

    node = helper.make_node("Neg", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([node], "neg", [x], [y])
    opset = helper.make_opsetid("", 17)
    made: Any = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    return made.SerializeToString()


def by_client(net: souk.Testnet, neg: bytes, x: NDArray[np.float32]) -> float:
    """Seconds from an array to an array."""
    began = time.perf_counter()
    y = net.run(neg, {"x": x}, real=True)["y"]
    took = time.perf_counter() - began
    if not np.array_equal(y, -x):
        raise SystemExit("the answer is wrong")
    return took


def souk_says(folder: Path, *arguments: str) -> None:
    """Runs the command line in a folder."""
    command = [souk.find_binary(), *arguments]
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, check=True, stdout=quiet, stderr=quiet)


def by_command_line(folder: Path, x: NDArray[np.float32]) -> float:
    """Seconds from a file to a file."""
    np.save(folder / "x.npy", x)
    began = time.perf_counter()
    souk_says(folder, "submit", "neg.onnx", "-i", "x=x.npy", "-o", "out", "--real")
    took = time.perf_counter() - began
    if not np.array_equal(np.load(folder / "out" / "y.npy"), -x):
        raise SystemExit("the answer is wrong")
    return took


def main() -> int:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=float, default=1.5)
    asked = parser.parse_args()
    neg = model()
    generator = np.random.default_rng(1)
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as place, souk.testnet() as net:
        folder = Path(place)
        (folder / "neg.onnx").write_bytes(neg)
        souk_says(folder, "testnet", "up", "--detach", "--no-http")
        try:
            for number in range(-1, asked.rounds):
                arrays = generator.random((2, asked.megabytes * 250_000), np.float32)
                times = by_client(net, neg, arrays[0]), by_command_line(folder, arrays[1])
                # The first round teaches both markets how long it takes.
                if number >= 0:
                    ours.append(times[0])
                    theirs.append(times[1])
                told = f"client {times[0]:.3f} s, command line {times[1]:.3f} s"
                print(f"round {number + 1}: {told}", flush=True)
        finally:
            souk_says(folder, "testnet", "down")
    ratio = statistics.median(ours) / statistics.median(theirs)
    medians = (
        f"client {statistics.median(ours):.3f} s, command line {statistics.median(theirs):.3f} s"
    )
    print(f"{asked.megabytes} MB in and out, medians: {medians}; {ratio:.2f} times as long")
    return 0 if ratio <= asked.most else 1


if __name__ == "__main__":
    sys.exit(main())
