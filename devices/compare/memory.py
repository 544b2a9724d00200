"""The peak of memory of whole models, beside ONNX Runtime on the same files in the same run.

    python3 -m venv v
    v/bin/pip install onnx onnxruntime numpy
    v/bin/python devices/compare/memory.py --souk souk
    v/bin/python devices/compare/memory.py --souk souk DIR --largest 20

Without a path it makes deep models of its own: layers of a product and SiLU that share two weights,
a chain of products with large values between them, a network of residual convolutions, the layers
of a transformer, and branches that are read late. With a file or a folder (such as the one that
`wild.py --keep` writes) it takes the models there, `--largest` of them by their size. Sizes that a
model leaves open are `--sizes`, from the first on, and 1 behind them.

Each figure is the peak of resident memory of a process of its own that opens the file and runs the
model twice. `own` is that peak less what the process had before it opened the model: Python
and the library of the one, the program of the other. The ratio is of these.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

RUNS = 1

THEIRS = """
import sys, json, resource
import numpy as np, onnxruntime
path, threads, runs, sizes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
options.log_severity_level = 3
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64,
         "tensor(int32)": np.int32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8,
         "tensor(int8)": np.int8, "tensor(bool)": np.bool_}
given = {}
for port in session.get_inputs():
    sizes = list(sizes)
    dims = [size if isinstance(size, int) else (sizes.pop(0) if sizes else 1) for size in port.shape]
    kind = types[port.type]
    count = int(np.prod(dims))
    if np.issubdtype(kind, np.floating):
        values = np.sin(np.arange(count, dtype=np.float32))
    else:
        values = np.ones(count) if "mask" in port.name else np.arange(count) * 37 % 2
    given[port.name] = values.astype(kind).reshape(dims)
import time
best = None
for _ in range(runs + 1):
    start = time.perf_counter()
    session.run(None, given)
    took = time.perf_counter() - start
    best = took if best is None else min(best, took)
print(json.dumps({"before": before, "peak": peak(), "best": best}))
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    parser.add_argument("--souk", default="souk")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", default="")
    parser.add_argument("--largest", type=int, default=20)
    parser.add_argument("--keep", type=pathlib.Path, help="where models that are made here go")
    return parser.parse_args()


def model_of(nodes, inputs, outputs, weights):
    from onnx import TensorProto, helper, numpy_helper

    value = lambda port: helper.make_tensor_value_info(port[0], TensorProto.FLOAT, port[1])
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", list(map(value, inputs)), list(map(value, outputs)), held)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def drawn(*dims, seed=0, scale=None):
    import numpy as np

    scale = scale or float(np.prod(dims[1:])) ** -0.5
    return (np.random.default_rng(seed).standard_normal(dims) * scale).astype(np.float32)


def gated(depth=300, rows=4096, width=256):
    """Layers of a product and SiLU; two weights in turn."""
    from onnx import helper

    nodes = []
    for layer in range(depth):
        made, gate, end = f"a{layer}", f"s{layer}", f"x{layer + 1}"
        nodes += [
            helper.make_node("MatMul", [f"x{layer}", f"w{layer % 2}"], [made]),
            helper.make_node("Sigmoid", [made], [gate]),
            helper.make_node("Mul", [made, gate], [end]),
        ]
    weights = {f"w{index}": drawn(width, width, seed=index) for index in (0, 1)}
    return model_of(nodes, [("x0", [rows, width])], [(f"x{depth}", [rows, width])], weights)


def chain(depth=300, rows=400_000, width=16):
    """Products one after the other, of which another engine takes every second step."""
    from onnx import helper

    nodes = []
    for layer in range(depth):
        nodes.append(helper.make_node("MatMul", [f"x{layer}", "w"], [f"a{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"a{layer}"], [f"x{layer + 1}"]))
    ports = [("x0", [rows, width])], [(f"x{depth}", [rows, width])]
    return model_of(nodes, *ports, {"w": drawn(width, width)})


def residual(blocks=8, channels=256, size=56):
    """Convolutions with sums over two of them, as in networks of images, and SiLU between."""
    from onnx import helper

    nodes, weights = [], {}
    for block in range(blocks):
        last = f"x{block}"
        for half in (0, 1):
            name = f"{block}_{half}"
            weights[f"w{name}"] = drawn(channels, channels, 3, 3, seed=block)
            nodes.append(helper.make_node("Conv", [last, f"w{name}"], [f"c{name}"], pads=[1] * 4))
            nodes.append(helper.make_node("Sigmoid", [f"c{name}"], [f"s{name}"]))
            nodes.append(helper.make_node("Mul", [f"c{name}", f"s{name}"], [f"m{name}"]))
            last = f"m{name}"
        nodes.append(helper.make_node("Add", [f"x{block}", last], [f"x{block + 1}"]))
    dims = [1, channels, size, size]
    return model_of(nodes, [("x0", dims)], [(f"x{blocks}", dims)], weights)


def transformer(layers=12, length=128, width=768, heads=12):
    """Layers of attention and of a network with a gate, each step a node of its own."""
    import numpy as np
    from onnx import helper

    nodes, weights = [], {"eps": np.float32(1e-5).reshape(()), "scale": np.float32(8).reshape(())}
    weights["two"] = np.float32(2).reshape(())
    import onnx

    def node(operator, inputs, output, **attributes):
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def product(value, name, rows, columns):
        weights[name] = drawn(rows, columns, seed=len(weights))
        return node("MatMul", [value, name], f"{name}_made")

    def normal(value, name):
        squares = node("Pow", [value, "two"], f"{name}_squares")
        mean = node("ReduceMean", [squares], f"{name}_mean", axes=[-1], keepdims=1)
        root = node("Sqrt", [node("Add", [mean, "eps"], f"{name}_shifted")], f"{name}_root")
        return node("Div", [value, root], f"{name}_normal")

    state = "x"
    for layer in range(layers):
        own = lambda what: f"{what}{layer}"
        value = normal(state, own("n"))
        parts = {}
        for part in "qkv":
            made = product(value, own(part), width, width)
            parts[part] = node("Reshape", [made, "heads"], own(part) + "_split")
        query = node("Transpose", [parts["q"]], own("qt"), perm=[0, 2, 1, 3])
        key = node("Transpose", [parts["k"]], own("kt"), perm=[0, 2, 3, 1])
        held = node("Transpose", [parts["v"]], own("vt"), perm=[0, 2, 1, 3])
        scores = node("Div", [node("MatMul", [query, key], own("qk")), "scale"], own("scores"))
        seen = node("MatMul", [node("Softmax", [scores], own("p"), axis=-1), held], own("seen"))
        joined = node("Transpose", [seen], own("joined"), perm=[0, 2, 1, 3])
        joined = node("Reshape", [joined, "whole"], own("flat"))
        state = node("Add", [state, product(joined, own("o"), width, width)], own("mid"))
        value = normal(state, own("m"))
        gate = product(value, own("g"), width, 4 * width)
        gate = node("Mul", [gate, node("Sigmoid", [gate], own("gs"))], own("silu"))
        wide = node("Mul", [gate, product(value, own("u"), width, 4 * width)], own("wide"))
        state = node("Add", [state, product(wide, own("d"), 4 * width, width)], own("end"))
    weights["heads"] = np.array([0, 0, heads, width // heads], np.int64)
    weights["whole"] = np.array([0, 0, width], np.int64)
    dims = [1, length, width]
    made = model_of(nodes, [("x", dims)], [(state, dims)], weights)
    onnx.checker.check_model(made)
    return made


def branches(depth=60, rows=32_768, width=64):
    """As in a network with long ways around: the first half's values are read by the second's."""
    from onnx import helper

    nodes, half = [], depth // 2
    for layer in range(depth):
        value = f"x{layer}"
        if layer > half:
            value = f"j{layer}"
            nodes.append(helper.make_node("Add", [f"x{layer}", f"x{depth - layer}"], [value]))
        nodes.append(helper.make_node("MatMul", [value, "w"], [f"a{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"a{layer}"], [f"x{layer + 1}"]))
    dims = [rows, width]
    return model_of(nodes, [("x0", dims)], [(f"x{depth}", dims)], {"w": drawn(width, width)})


MADE = [gated, chain, residual, transformer, branches]


def souk(options, path):
    command = [options.souk, "--json", "bench", "models", "--runs", str(RUNS)]
    command += ["--threads", str(options.threads), str(path)]
    if options.sizes:
        command += ["--sizes", options.sizes]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        return None, (ended.stdout + ended.stderr).strip().splitlines()[-1:]
    return json.loads(ended.stdout), None


def theirs(options, path):
    sizes = json.dumps([int(size) for size in options.sizes.split(",") if size])
    command = [sys.executable, "-c", THEIRS, str(path), str(options.threads), str(RUNS), sizes]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        return None, ended.stderr.strip().splitlines()[-1:]
    return json.loads(ended.stdout), None


def models(options, folder):
    if not options.paths:
        import onnx

        for maker in MADE:
            path = folder / f"{maker.__name__}.onnx"
            onnx.save(maker(), path)
            yield path
        return
    for path in options.paths:
        files = [path] if path.is_file() else sorted(path.rglob("*.onnx"))
        size = lambda file: sum(it.stat().st_size for it in file.parent.glob(file.stem + "*"))
        yield from sorted(files, key=size, reverse=True)[: options.largest]


def main():
    options = arguments()
    worst = 0.0
    print(f"{'model':28} {'souk MB':>9} {'ORT MB':>9} {'own':>9} {'own':>9} {'ratio':>6}"
          f" {'souk ms':>9} {'ORT ms':>9}")
    with tempfile.TemporaryDirectory() as made:
        for path in models(options, options.keep or pathlib.Path(made)):
            (found, why), (wanted, cause) = souk(options, path), theirs(options, path)
            if found is None or wanted is None:
                print(f"{path.stem:28} not compared: {why or cause}")
                continue
            own = found["memory_peak_bytes"] - found["memory_before_bytes"]
            other = wanted["peak"] - wanted["before"]
            ratio = own / other
            worst = max(worst, ratio)
            figures = [found["memory_peak_bytes"], wanted["peak"], own, other]
            sizes = " ".join(f"{figure / 1e6:9.1f}" for figure in figures)
            times = f"{found['best_seconds'] * 1e3:9.1f} {wanted['best'] * 1e3:9.1f}"
            print(f"{path.stem:28} {sizes} {ratio:6.2f} {times}", flush=True)
    print(f"largest ratio {worst:.2f}")


main()
