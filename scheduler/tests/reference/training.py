"""Print the losses of training steps of the bundled digit classifier, computed by PyTorch.

    python3 -m venv venv
    venv/bin/pip install torch==2.15.0 onnx==1.23.2 numpy==2.4.6
    venv/bin/python training.py

`scheduler/src/gradient/tests/step_tests.rs` holds what this prints, so that the project itself
needs no PyTorch. The model learns other labels than it knows: each digit plus three, modulo ten.
The batches are 36 images each, in the order of the file.
"""
import pathlib

import numpy as np
import onnx
import torch
import torch.nn.functional as functional
from onnx import numpy_helper

MODEL = pathlib.Path(__file__).resolve().parents[3] / "testnet/models/digits"
STEPS = 20
BATCH = 36


def run(graph, parameters, images):
    """Compute the logits of the model's graph."""
    values = {**parameters, graph.input[0].name: images}
    for node in graph.node:
        attributes = {it.name: onnx.helper.get_attribute_value(it) for it in node.attribute}
        inputs = [values[name] for name in node.input]
        values[node.output[0]] = compute(node.op_type, inputs, attributes)
    return values[graph.output[0].name]


def compute(operator, inputs, attributes):
    """Compute one operator of the model."""
    pads = attributes.get("pads", [0, 0, 0, 0])
    assert pads[:2] == pads[2:]
    if operator == "Conv":
        return functional.conv2d(*inputs, stride=attributes.get("strides", 1), padding=pads[:2])
    if operator == "MaxPool":
        kernel = attributes["kernel_shape"]
        stride = attributes.get("strides", [1, 1])
        return functional.max_pool2d(inputs[0], kernel, stride, pads[:2])
    if operator == "Gemm":
        assert attributes.get("transB", 0) == 1
        return functional.linear(*inputs)
    simple = {
        "Relu": lambda: functional.relu(inputs[0]),
        "Concat": lambda: torch.cat(inputs, attributes["axis"]),
        "Flatten": lambda: inputs[0].flatten(1),
        "Div": lambda: inputs[0] / inputs[1],
        "Mul": lambda: inputs[0] * inputs[1],
    }
    return simple[operator]()


def train(name, make_optimizer):
    """Print the losses of one optimiser."""
    graph = onnx.load(MODEL / "digits.onnx").graph
    tensors = {it.name: torch.tensor(numpy_helper.to_array(it)) for it in graph.initializer}
    trained = [it for it in tensors.values() if it.dtype == torch.float32 and it.dim() > 0]
    for tensor in trained:
        tensor.requires_grad_()
    optimizer = make_optimizer(trained)
    images = torch.tensor(np.load(MODEL / "images.npy"))
    labels = (torch.tensor(np.load(MODEL / "labels.npy")) + 3) % 10
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH % len(images), step * BATCH % len(images) + BATCH)
        optimizer.zero_grad()
        loss = functional.cross_entropy(run(graph, tensors, images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(name, [float(f"{loss:.8g}") for loss in losses])


torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
train("adamw", lambda trained: torch.optim.AdamW(trained, lr=2e-4))
train("sgd", lambda trained: torch.optim.SGD(trained, lr=1e-5, momentum=0.9, weight_decay=1e-3))
