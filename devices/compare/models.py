"""Time models on souk and on ONNX Runtime in one run, in turns, and print the ratios.

    python3 -m venv v && v/bin/pip install onnx onnxruntime
    v/bin/python devices/compare/models.py --souk target/release/souk --light
    v/bin/python devices/compare/models.py --souk target/release/souk minilm.onnx --sizes 8,128

--light takes five networks over images that the `onnx` package carries (ResNet50, DenseNet121,
Inception v2, ShuffleNet, SqueezeNet). Both engines get the same file, the same inputs and the same
number of threads; the best of all rounds counts, since other work on the machine only adds. The
first outputs of both are compared too. Exits with 1 if an output differs or a ratio is above
--limit.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import onnxruntime

LIGHT = ("resnet50", "densenet121", "inception_v2", "shufflenet", "squeezenet")
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    parser.add_argument("--souk", default="target/release/souk")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--sizes", default="")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--backend", default="cpu")
    return parser.parse_args()


def light():
    import onnx

    folder = pathlib.Path(onnx.__file__).parent / "backend/test/data/light"
    return [folder / f"light_{name}.onnx" for name in LIGHT]


def made_up(value, sizes):
    """The rule of souk_devices_bench::models."""
    left = iter(sizes)
    dims = [dim if isinstance(dim, int) else next(left, 1) for dim in value.shape]
    index = np.arange(int(np.prod(dims)))
    dtype = TYPES[value.type]
    if dtype == np.float32:
        values = np.sin(index.astype(np.float32))
    else:
        values = np.ones_like(index) if "mask" in value.name else index * 37 % 30000
    return values.astype(dtype).reshape(dims)


def session(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def souk_times(options, path):
    command = [options.souk, "--json", "bench", "models", str(path), "--backend", options.backend]
    command += ["--threads", str(options.threads), "--runs", str(options.runs)]
    command += ["--sizes", options.sizes] if options.sizes else []
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def differs(ours, theirs):
    for name, values in ours.items():
        wanted = theirs[name].ravel()[: len(values)].astype(np.float64)
        scale = max(float(np.abs(theirs[name]).max()), 1e-30)
        if np.abs(np.array(values) - wanted).max() > 1e-3 * scale:
            return f"{name}: {values}, not {wanted.tolist()}"
    return None


def compare(options, path):
    sizes = [int(size) for size in options.sizes.split(",") if size]
    their = session(path, options.threads)
    inputs = {value.name: made_up(value, sizes) for value in their.get_inputs()}
    names = [value.name for value in their.get_outputs()]
    outputs = dict(zip(names, their.run(None, inputs)))
    best, ours = float("inf"), None
    for _ in range(options.rounds):
        for _ in range(options.runs):
            start = time.perf_counter()
            their.run(None, inputs)
            best = min(best, time.perf_counter() - start)
        found = souk_times(options, path)
        if ours is None or found["best_seconds"] < ours["best_seconds"]:
            ours = found
    ratio = ours["best_seconds"] / best
    memory = (ours["memory_peak_bytes"] or 0) / 1e6
    print(
        f"{path.name:28} {options.sizes:8} souk {ours['best_seconds'] * 1e3:8.2f} ms   "
        f"ONNX Runtime {onnxruntime.__version__} {best * 1e3:8.2f} ms   ratio {ratio:5.2f}   "
        f"peak {memory:.0f} MB",
        flush=True,
    )
    fault = differs(ours["outputs"], outputs)
    if fault:
        print(f"  differs: {fault}")
    return fault is None and ratio <= options.limit


def main():
    options = arguments()
    paths = options.models + (light() if options.light else [])
    print(f"load {os.getloadavg()[0]:.1f}, {options.threads} threads, best of {options.rounds} x {options.runs}")
    good = [compare(options, path) for path in paths]
    sys.exit(0 if paths and all(good) else 1)


if __name__ == "__main__":
    main()
