"""What goes wrong with graphs: outputs, names, functions, sequences, quantised layers, memory."""
import os
import re
import shutil

import numpy as np

from graphs import (
    BOOL, FLOAT, INT64, X, array, body, constant, helper, node, noise, outside, save, value)
from net import Failed, Skipped, alike, expect

# A value is to be near what ONNX Runtime 1.31.1 gives: of 8 bits rounded one way or the other.
QUANTISED_NEAR = 0.01
# Whole megabytes of a peak beside the library's own.
PEAK_RATIO = 2.5


def submit(net, model, out, *inputs):
    """The outputs of a model by their files' names."""
    words = [word for pair in inputs for word in ("-i", f"{pair[0]}={pair[1]}")]
    net.run("submit", model, *words, "-o", net.folder / out, "-q").done()
    return {path.name: np.load(path) for path in (net.folder / out).glob("*.npy")}


def near(found, wanted, what, within=1e-4):
    wanted = np.asarray(wanted)
    expect(found is not None and found.shape == wanted.shape, f"{what} is not there, or no such")
    off = np.abs(found.astype(np.float64) - wanted).max()
    expect(off <= within, f"{what} is off by {off}")


def outputs_that_no_node_makes(net):
    """An output that is a constant, a weight or an input is written like any other."""
    net.up()
    x = array(net.folder / "x.npy", X)
    inputs = [value("x", FLOAT, [2, 3])]
    relu, weight = node("Relu", ["x"], ["y"]), np.float32([-0.5, 1.25])
    integers = node("Constant", [], ["k"], value_ints=[3, 4])
    models = {
        "constant": ([relu, integers], value("k", INT64), (), ("k", [3, 4])),
        "weight": ([relu], value("k"), [constant("k", weight)], ("k", weight)),
        "input": ([relu], inputs[0], (), ("x", X))}
    for name, (nodes, second, constants, (output, wanted)) in models.items():
        model = save(net.folder / f"{name}.onnx", nodes, inputs, [value("y"), second], constants)
        outputs = submit(net, model, name, ("x", x))
        alike(sorted(outputs), sorted([f"{output}.npy", "y.npy"]), f"{name}: the files")
        near(outputs["y.npy"], np.maximum(X, 0), f"{name}: y")
        near(outputs[f"{output}.npy"], wanted, f"{name}: {output}")


def output_names_that_meet(net):
    """Two outputs whose names are one file's: each has a file, or the job is refused."""
    net.up()
    x = array(net.folder / "x.npy", X)
    model = save(
        net.folder / "model.onnx", [node("Relu", ["x"], ["a/b"]), node("Neg", ["x"], ["a_b"])],
        [value("x", FLOAT, [2, 3])], [value("a/b"), value("a_b")])
    ran = net.run("submit", model, "-i", f"x={x}", "-o", net.folder / "out", "-q")
    if ran.code == 3:
        return
    ran.done()
    found = [np.load(path) for path in (net.folder / "out").glob("*.npy")]
    for wanted in (np.maximum(X, 0), -X):
        expect(any(np.array_equal(it, wanted) for it in found), "an output is in no file")


def functions_in_bodies(net):
    """A model's own function of another version, in a branch and in a loop's body (skl2onnx)."""
    net.up()
    x = array(net.folder / "x.npy", X)
    inputs, outputs = [value("x", FLOAT, [2, 3])], [value("y")]

    def half(version):
        return helper.make_function(
            "my", "Half", ["x"], ["y"],
            [node("Constant", [], ["c"], value_float=0.5), node("Mul", ["x", "c"], ["y"])],
            [helper.make_opsetid("", version)])

    def halved(name, nodes, more, *files, version=18):
        model = save(net.folder / f"{name}.onnx", nodes, inputs + more, outputs,
                     opsets={"my": 1}, functions=[half(version)])
        return submit(net, model, name, ("x", x), *files).get("y.npy")

    plain = node("Half", ["x"], ["y"], domain="my")
    near(halved("version", [plain], [], version=17), X / 2, "of another version")
    branch = node(
        "If", ["p"], ["y"],
        then_branch=body([node("Half", ["x"], ["ya"], domain="my")], [], [value("ya")]),
        else_branch=body([node("Neg", ["x"], ["yb"])], [], [value("yb")]))
    truth = array(net.folder / "p.npy", np.array([True]))
    near(halved("if", [branch], [value("p", BOOL, [1])], ("p", truth)), X / 2, "in a branch")
    turn = body(
        [node("Half", ["v"], ["v2"], domain="my"), node("Identity", ["c"], ["c2"])],
        [value("i", INT64, []), value("c", BOOL, []), value("v")],
        [value("c2", BOOL), value("v2")])
    loop = node("Loop", ["m", "", "x"], ["y"], body=turn)
    turns = array(net.folder / "m.npy", np.int64(3))
    near(halved("loop", [loop], [value("m", INT64, [])], ("m", turns)), X / 8, "in a loop")


def sequences(net):
    """PyTorch's split and chunk, lists in loops, scikit-learn's MultiOutputClassifier."""
    net.up()
    x = array(net.folder / "x.npy", X)
    inputs, outputs = [value("x", FLOAT, [2, 3])], [value("y")]
    split = save(
        net.folder / "split.onnx",
        [node("SplitToSequence", ["x", "s"], ["q"], axis=0), node("SequenceAt", ["q", "k"], ["y"])],
        inputs, outputs, [constant("s", np.int64([1, 1])), constant("k", np.int64(1))],
        opsets={"": 13})
    near(submit(net, split, "split", ("x", x)).get("y.npy"), X[1:], "the second piece")

    def items(name):
        return helper.make_tensor_sequence_value_info(name, FLOAT, None)

    turn = body(
        [node("SequenceInsert", ["q", "x"], ["q2"]), node("Identity", ["c"], ["c2"])],
        [value("i", INT64, []), value("c", BOOL, []), items("q")], [value("c2", BOOL), items("q2")])
    loop = save(
        net.folder / "loop.onnx",
        [node("SequenceEmpty", [], ["q0"]), node("Loop", ["m", "", "q0"], ["qf"], body=turn),
         node("ConcatFromSequence", ["qf"], ["y"], axis=0)],
        [*inputs, value("m", INT64, [])], outputs, opsets={"": 16})
    turns = array(net.folder / "m.npy", np.int64(3))
    found = submit(net, loop, "loop", ("x", x), ("m", turns)).get("y.npy")
    near(found, np.concatenate([X, X, X]), "what a loop gathered")


def dynamic_quantize_lstm(net):
    """ONNX Runtime's quantize_dynamic writes DynamicQuantizeLSTM for every LSTM."""
    net.up()
    places = np.arange
    weights = (places(48) * 37 % 255 - 127).astype(np.int8).reshape(1, 4, 12)
    recurrent = (places(36) * 53 % 255 - 127).astype(np.int8).reshape(1, 3, 12)
    scale, zero = np.float32([1 / 64]), np.int8([0])
    constants = {"w": weights, "r": recurrent, "ws": scale, "wz": zero, "rs": scale, "rz": zero,
                 "b": np.sin(places(24, dtype=np.float32)).reshape(1, 24)}
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    model = save(
        net.folder / "model.onnx",
        [node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=3)],
        [value("x", FLOAT, [5, 2, 4])], [value("y")],
        [constant(name, it) for name, it in constants.items()], opsets={"com.microsoft": 1})
    given = np.cos(places(40, dtype=np.float32)).reshape(5, 2, 4)
    x = array(net.folder / "x.npy", given)
    wanted = [[-0.0421, -0.1057, -0.0310, 0.4528, 0.0681, -0.0674],
              [0.1302, -0.4019, -0.0540, 0.1095, -0.0233, -0.0257],
              [0.3767, 0.1124, -0.1024, 0.1277, -0.2912, -0.1496],
              [0.1407, -0.0275, -0.0302, 0.2740, 0.1789, -0.2127],
              [0.0371, -0.2815, -0.1098, 0.2208, 0.0259, -0.0547]]
    found = submit(net, model, "out", ("x", x)).get("y.npy")
    near(found, np.reshape(wanted, (5, 1, 2, 3)), "y", within=QUANTISED_NEAR)


def values_kept_to_the_end(net):
    """Of 60 layers that read two weights by turns, a value goes when its last reader is done."""
    nodes, last = [], "x"
    for place in range(60):
        nodes += [node("MatMul", [last, f"w{place % 2}"], [f"a{place}"]),
                  node("Sigmoid", [f"a{place}"], [f"s{place}"]),
                  node("Mul", [f"a{place}", f"s{place}"], [f"r{place}"])]
        last = f"r{place}"
    nodes.append(node("Identity", [last], ["y"]))
    weights = [constant(f"w{place}", noise(place, 512, 512) / 16) for place in range(2)]
    model = save(net.folder / "model.onnx", nodes, [value("x", FLOAT, ["n", 512])], [value("y")],
                 weights)
    ran = net.run("bench", "memory", f"{model}:4096").done()
    found = re.search(r"ratio ([0-9.]+)", ran.out + ran.err)
    if not found:
        raise Failed(f"no ratio is told: {ran.out.strip()}")
    ratio = float(found[1])
    expect(ratio <= PEAK_RATIO, f"{ratio} times the peak of the library alone")


def weight_of_three_gigabytes(net):
    """An embedding of 3.07 GB in a file of its own is bought, sent and run, or not bought at all."""
    rows, width, at_once = 750_000, 1024, 50_000
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if min(free, shutil.disk_usage(net.folder).free) < 4 * (rows * width * 4):
        raise Skipped("takes 12.3 GB of free memory and of the disk")
    net.up()
    with open(net.folder / "table.bin", "wb") as table:
        for first in range(0, rows, at_once):
            numbers = np.arange(first, first + at_once, dtype=np.float32)
            table.write(np.repeat(numbers[:, None], width, 1).tobytes())
    model = save(
        net.folder / "model.onnx",
        [node("Gather", ["table", "ids"], ["found"]),
         node("ReduceMean", ["found"], ["y"], axes=[1], keepdims=0)],
        [value("ids", INT64, ["n"])], [value("y")],
        [outside("table", [rows, width], "table.bin")], opsets={"": 13})
    ids = array(net.folder / "ids.npy", np.int64([0, 1, 400_000, rows - 1]))
    found = submit(net, model, "out", ("ids", ids)).get("y.npy")
    near(found, [0, 1, 400_000, rows - 1], "y")


CASES = [weight_of_three_gigabytes, outputs_that_no_node_makes, output_names_that_meet,
         functions_in_bodies, sequences, dynamic_quantize_lstm, values_kept_to_the_end]
