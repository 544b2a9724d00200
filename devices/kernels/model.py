"""Write `median.onnx`: a graph whose middle node is a kernel of its own in WebAssembly.

    python3 -m venv v && v/bin/pip install onnx
    v/bin/python devices/kernels/model.py median.wasm devices/kernels/median.onnx

What a buyer's kernel is in ONNX: a node of the domain `ai.souk`, the module its first input, and two
attributes that say what it makes. docs/kernels.md has the contract.
"""
import pathlib
import sys

from onnx import TensorProto, checker, helper, save_model

module, path = sys.argv[1:]
code = pathlib.Path(module).read_bytes()
kernel = helper.make_tensor("kernel", TensorProto.UINT8, [len(code)], code, raw=True)
nodes = [
    helper.make_node("Neg", ["x"], ["a"]),
    helper.make_node(
        "Wasm",
        ["kernel", "a"],
        ["b"],
        domain="ai.souk",
        output_types=[TensorProto.FLOAT],
        output_shapes=["i0.0,i0.1"],
    ),
    helper.make_node("Neg", ["b"], ["y"]),
]
signal = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["channels", "samples"])
graph = helper.make_graph(nodes, "median", [signal("x")], [signal("y")], [kernel])
opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.souk", 1)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
checker.check_model(model)
save_model(model, path)
