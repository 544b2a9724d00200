"""How near the times are that plans state: small models, each run once through a market.

    python3 -m venv v
    v/bin/pip install onnx onnxruntime skl2onnx scikit-learn
    souk testnet up --detach
    v/bin/python devices/compare/estimates.py --souk souk --dir souk-testnet

The models are those of `wild.py` that scikit-learn and the ONNX Runtime operators make, as many of
each as there is room for, in an order that mixes them. Each is planned and run once on the real CPU,
so that a plan knows other models and never this one. The table has planned and measured times; the
last line says how many plans were within twice of what was measured, either way.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import onnx

import wild

EXPORTERS = ["scikit-learn", "operators of ONNX Runtime, by hand"]
PARTS = ["upload_seconds", "wait_seconds", "compute_seconds", "all_seconds"]
# What is planned within so many times of what is measured, either way, is near.
NEAR = 2.0


def cases(exporter):
    for maker in wild.MAKERS[exporter]:
        made = maker()
        while True:
            try:
                case = next(made)
            except (StopIteration, ImportError):
                break
            numbers = case is not None and all(
                isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in case.inputs.values()
            )
            if numbers and isinstance(case.model, onnx.ModelProto):
                yield case


def chosen(count):
    # Whatever models there are, the same seed takes the same ones in the same order.
    draw = random.Random(7)
    each = [list(cases(exporter)) for exporter in EXPORTERS]
    picked = []
    for made in each:
        draw.shuffle(made)
        picked += made[: count // len(each)]
    rest = [case for made in each for case in made[count // len(each) :]]
    picked += rest[: count - len(picked)]
    draw.shuffle(picked)
    return picked


def run(options, case, number, root):
    folder = root / f"{number}"
    folder.mkdir()
    onnx.save(case.model, folder / "model.onnx")
    given = []
    for place, (name, value) in enumerate(case.inputs.items()):
        np.save(folder / f"{place}.npy", value)
        given += ["-i", f"{name}={folder / f'{place}.npy'}"]
    command = [options.souk, "--dir", options.dir, "--json", "submit", str(folder / "model.onnx"), *given]
    command += ["-o", str(folder / "out"), "--backend", "cpu", "--max-providers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        return None
    return json.loads(done.stdout)["times"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--souk", default="souk")
    parser.add_argument("--dir", default="souk-testnet")
    parser.add_argument("--models", type=int, default=50)
    options = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp())
    ratios = {part: [] for part in PARTS}
    for number, case in enumerate(chosen(options.models)):
        times = run(options, case, number, root)
        if times is None:
            print(f"{case.name}: refused", flush=True)
            continue
        shown = []
        for part in PARTS:
            planned, measured = times["planned"][part], times["measured"][part]
            shown.append(f"{planned * 1e3:8.2f} /{measured * 1e3:8.2f}")
            if planned > 0 and measured > 0:
                ratios[part].append(planned / measured)
        print(f"{case.name[:40]:40} ms: " + " | ".join(shown), flush=True)
    for part in PARTS:
        known = sorted(ratios[part])
        near = sum(1 / NEAR <= ratio <= NEAR for ratio in known)
        middle = known[len(known) // 2] if known else 0.0
        print(f"{part}: planned within {NEAR:g} times of measured in {near} of {len(known)}, median {middle:.2f}")
    total = ratios["all_seconds"]
    return 0 if sum(1 / NEAR <= ratio <= NEAR for ratio in total) >= 0.9 * len(total) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
