"""What goes up: models and tensors as bytes, each named by the BLAKE3 of them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._tensors import hash_of, is_safetensors, safetensors_header
from .errors import InputRefused


@runtime_checkable
class Proto(Protocol):
    """A message of protobuf, such as `onnx.ModelProto`."""

    def SerializeToString(self) -> bytes:  # noqa: N802 (so protobuf calls it)
        """The bytes of its file."""
        ...


ModelLike: TypeAlias = "str | PathLike[str] | bytes | bytearray | memoryview | Proto"
"""A model: the path of an ONNX file, the bytes of one, or an `onnx.ModelProto`."""

Inputs: TypeAlias = "Mapping[str, ArrayLike]"
"""The inputs of a model by name: arrays, or lists that become arrays."""


class Content:
    """Bytes that have a name."""

    def __init__(self, *pieces: bytes | memoryview) -> None:
        self.pieces = pieces
        self.length = sum(len(piece) for piece in pieces)

    @cached_property
    def name(self) -> str:
        """The BLAKE3 of the bytes."""
        return hash_of(*self.pieces)

    def chunks(self, most: int) -> Iterator[memoryview]:
        """The bytes, so many at a time; none is copied."""
        for piece in map(memoryview, self.pieces):
            for start in range(0, len(piece), most):
                yield piece[start : start + most]


class Prepared:
    """A model and its inputs, ready to go up."""

    def __init__(self, model: Content, inputs: Mapping[str, Content]) -> None:
        self.model = model
        self.inputs = inputs

    @property
    def contents(self) -> list[Content]:
        """All of them."""
        return [self.model, *self.inputs.values()]

    def body(self) -> dict[str, Any]:
        """How a job names them."""
        inputs = {name: {"content": one.name} for name, one in self.inputs.items()}
        return {"model": self.model.name, "inputs": inputs}


def model_content(model: ModelLike | Content) -> Content:
    """A model as bytes."""
    if isinstance(model, Content):
        return model
    if isinstance(model, (bytes, bytearray, memoryview)):
        return Content(memoryview(model).cast("B"))
    if isinstance(model, (str, PathLike)):
        return _read(Path(fspath(model)))
    if isinstance(model, Proto):  # pyright: ignore[reportUnnecessaryIsInstance]
        return Content(_serialized(model))
    raise InputRefused(
        f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}",
        "export it to ONNX first: docs/python.md shows how",
    )


def _read(path: Path) -> Content:
    try:
        return Content(path.read_bytes())
    except OSError as error:
        raise InputRefused(
            f"cannot read the model {path}: {error.strerror or error}", "is the path right?"
        ) from error


def _serialized(model: Proto) -> bytes:
    try:
        return model.SerializeToString()
    except ValueError as error:
        # Protobuf's own limit of 2 GiB.
        raise InputRefused(f"the model cannot be written: {error}") from error


def input_contents(inputs: Inputs) -> dict[str, Content]:
    """Inputs as files of NumPy, or of safetensors where NumPy lacks the type."""
    # Whoever passes an array alone is not served by a message about its methods.
    if not isinstance(inputs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputRefused(
            f"the inputs are a mapping from names to arrays, not {type(inputs).__name__}",
            "`souk model inspect` tells the names: {'x': x}",
        )
    return {name: _tensor(name, array_of(name, value)) for name, value in inputs.items()}


def array_of(name: str, value: ArrayLike) -> NDArray[Any]:
    """An array of what may be one. Of lists, floats become f32 and whole numbers i64; objects that
    are all texts become an array of texts.
    """
    given = cast("Any", value)
    if hasattr(given, "detach"):
        # A tensor of PyTorch may be on a device, and may want its gradient.
        given = given.detach().cpu().numpy()
    try:
        array: Any = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise InputRefused(f"{name} is no array: {error}", "are its rows equally long?") from error
    if not hasattr(given, "dtype") and not hasattr(given, "__array__") and array.dtype.kind == "f":
        array = array.astype(np.float32)
    if array.dtype.kind == "O" and all(isinstance(one, str) for one in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind in "OVmM" and not is_safetensors(array.dtype):
        raise InputRefused(
            f"{name} is an array of {array.dtype}, and a tensor is of numbers or of texts",
            "convert it with astype",
        )
    return array


def _tensor(name: str, array: NDArray[Any]) -> Content:
    # Little-endian, in C order; nothing is copied where it is so already.
    dtype: Any = array.dtype
    if dtype.byteorder == ">":
        dtype = dtype.newbyteorder("<")
    array = np.asarray(array, dtype=dtype, order="C")
    flat: Any = array
    bytes_of = flat.reshape(-1).view(np.uint8).data if array.size else b""
    elements = cast("memoryview | bytes", bytes_of)
    if is_safetensors(dtype):
        return Content(safetensors_header(name, array), elements)
    header = io.BytesIO()
    facts = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(header, facts)
    return Content(header.getvalue(), elements)
