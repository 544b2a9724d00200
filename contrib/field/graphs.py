"""Small ONNX models, their inputs and their outputs as files."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(-2, 4, dtype=np.float32).reshape(2, 3)

node = helper.make_node


def value(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def outside(name, shape, file):
    """A weight of floats that lies in a file of its own, beside the model."""
    weight = TensorProto(name=name, data_type=FLOAT, dims=shape)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=file)
    return weight


def save(path, nodes, inputs, outputs, constants=(), *, opsets=None, functions=()):
    """Writes a model. What a version of the operators is not given for has 18."""
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(constants))
    imports = [helper.make_opsetid(*pair) for pair in {"": 18, **(opsets or {})}.items()]
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    model.ir_version = 10
    onnx.save(model, path)
    return path


def body(nodes, inputs, outputs):
    return helper.make_graph(list(nodes), "b", list(inputs), list(outputs))


def array(path, values):
    np.save(path, values)
    return path


def noise(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def long_chain(folder):
    """300 products of 1024 by 1024: by 256 rows it takes a CPU a second or more."""
    nodes, last = [], "x"
    for place in range(300):
        nodes += [node("MatMul", [last, "w"], [f"a{place}"]),
                  node("Tanh", [f"a{place}"], [f"v{place}"])]
        last = f"v{place}"
    nodes.append(node("Identity", [last], ["y"]))
    for rows in (8, 256):
        array(folder / f"rows{rows}.npy", noise(rows, rows, 1024))
    weight = constant("w", noise(1, 1024, 1024) / 32)
    return save(folder / "chain.onnx", nodes, [value("x", FLOAT, ["n", 1024])], [value("y")],
                [weight], opsets={"": 16})


def open_loop(folder):
    """A loop whose turns are an input: tanh(v times w), of 256 by 256."""
    turn = body(
        [node("MatMul", ["v", "w"], ["a"]), node("Tanh", ["a"], ["v2"]),
         node("Identity", ["c"], ["c2"])],
        [value("i", INT64, []), value("c", BOOL, []), value("v", FLOAT, [256, 256])],
        [value("c2", BOOL, []), value("v2", FLOAT, [256, 256])])
    weight, given = noise(1, 256, 256) / 16, noise(2, 256, 256)
    array(folder / "x.npy", given)
    for turns in (10, 1000, 20000):
        array(folder / f"turns{turns}.npy", np.int64(turns))
    save(folder / "loop.onnx", [node("Loop", ["m", "", "x"], ["y"], body=turn)],
         [value("x", FLOAT, [256, 256]), value("m", INT64, [])],
         [value("y", FLOAT, [256, 256])], [constant("w", weight)], opsets={"": 16})
    return weight, given
