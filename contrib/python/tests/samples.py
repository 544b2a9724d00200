"""Models that the tests run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper


@dataclass(frozen=True)
class Digits:
    """A classifier of digits, images that it never saw, and what they show."""

    model: Path
    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def made(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> Any:
    """A model of these operators; inputs and outputs are (type, shape) by name."""
    given = [helper.make_tensor_value_info(name, *facts) for name, facts in inputs.items()]
    asked = [helper.make_tensor_value_info(name, *facts) for name, facts in outputs.items()]
    graph = helper.make_graph(nodes, "made", given, asked)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def identity(element: int, shape: list[int | str]) -> Any:
    """What gives back what it takes."""
    node = helper.make_node("Identity", ["x"], ["y"])
    return made([node], {"x": (element, shape)}, {"y": (element, shape)})


def zipped(classes: list[str]) -> Any:
    """What gives a map from classes to scores for each row."""
    node = helper.make_node(
        "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=classes
    )
    score = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_map_type_proto(TensorProto.STRING, score)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(classes)])
    asked = helper.make_value_info("y", helper.make_sequence_type_proto(maps))
    graph = helper.make_graph([node], "zipped", [given], [asked])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def powers(count: int, size: int = 1024) -> bytes:
    """A matrix multiplied by itself so often: work that takes a while."""
    before = ["x", *(f"p{n}" for n in range(1, count))]
    after = [*before[1:], "y"]
    nodes = [
        helper.make_node("MatMul", [one, "x"], [other])
        for one, other in zip(before, after, strict=True)
    ]
    shape = (TensorProto.FLOAT, [size, size])
    return made(nodes, {"x": shape}, {"y": shape}).SerializeToString()


def rotation(size: int = 1024) -> NDArray[np.float32]:
    """A matrix whose powers stay of one size: it moves each row by one."""
    return np.roll(np.eye(size, dtype=np.float32), 1, axis=1)
