"""Tensors as files: hashed, written, and read as arrays that are those their receipts name."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from ._models import OutputFacts
from .errors import InputRefused, Unexpected, VerificationFailed

# From so many bytes on, hashing by several threads is quicker than by one.
_THREADS_FROM = 1 << 20

NPY = "application/x-npy"
SAFETENSORS = "application/x-safetensors"
JSON = "application/json"

# souk's names of the element types that NumPy has itself, with their numbers in ONNX.
_NUMPY = {
    "f32": "<f4",
    "u8": "|u1",
    "i8": "|i1",
    "u16": "<u2",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "bool": "|b1",
    "f16": "<f2",
    "f64": "<f8",
    "u32": "<u4",
    "u64": "<u8",
    "complex64": "<c8",
    "complex128": "<c16",
}
_ONNX = {
    "f32": 1,
    "u8": 2,
    "i8": 3,
    "u16": 4,
    "i16": 5,
    "i32": 6,
    "i64": 7,
    "bool": 9,
    "f16": 10,
    "f64": 11,
    "u32": 12,
    "u64": 13,
    "complex64": 14,
    "complex128": 15,
    "bf16": 16,
    "f8e4m3fn": 17,
    "f8e5m2": 19,
    "f8e8m0": 24,
}


# Those that NumPy has by the package `ml_dtypes` and its own files lack, which come as safetensors:
# the name in NumPy, the name in the format, souk's name.
_TYPES = [
    ("bfloat16", "BF16", "bf16"),
    ("float8_e4m3fn", "F8_E4M3", "f8e4m3fn"),
    ("float8_e5m2", "F8_E5M2", "f8e5m2"),
    ("float8_e8m0fnu", "F8_E8M0", "f8e8m0"),
]
_SAFETENSORS = {row[2] for row in _TYPES}


def hash_of(*pieces: bytes | memoryview) -> str:
    """The BLAKE3 of pieces one after the other."""
    is_long = sum(len(piece) for piece in pieces) >= _THREADS_FROM
    hasher = blake3(max_threads=blake3.AUTO) if is_long else blake3()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def accepted(output: OutputFacts) -> str:
    """As which kind of file an output is fetched."""
    return SAFETENSORS if output.dtype in _SAFETENSORS else NPY


def array_in(file: NDArray[np.uint8], output: OutputFacts) -> NDArray[Any]:
    """The array in a file, which it shares; its bytes are those that the receipt names."""
    view = file.data
    is_numpy = output.dtype in _NUMPY
    start = _npy_elements_at(view) if is_numpy else _safetensors_elements_at(view)
    elements = view[start:]
    found = hash_of(_header(output), elements)
    if found != output.blake3:
        raise VerificationFailed(
            f"the output {output.name} has the hash {found}, its receipt says {output.blake3}",
            "fetch it again; if it stays so, dispute the receipt",
        )
    dtype = np.dtype(_NUMPY[output.dtype]) if is_numpy else _ml_dtype(output.dtype)
    array: Any = np.frombuffer(elements, cast("Any", dtype))
    return array.reshape(output.shape)


def meant(file: NDArray[np.uint8], output: OutputFacts) -> NDArray[Any]:
    """The texts or the dictionaries that an output's numbers stand for."""
    told = json.loads(bytes(file))
    if output.meaning == "texts":
        texts: Any = np.array(told, dtype=np.str_)
        return texts.reshape(output.shape)
    maps = np.empty(len(told), dtype=np.object_)
    maps[:] = told
    return maps


def _npy_elements_at(file: memoryview) -> int:
    head = io.BytesIO(file[:4096])
    try:
        version = np.lib.format.read_magic(head)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        read(head)
    except ValueError as error:
        raise Unexpected(f"no file of NumPy came: {error}") from error
    return head.tell()


def _header(output: OutputFacts) -> bytes:
    """What precedes a tensor's elements where it is hashed: type and shape, padded to 64 bytes."""
    if output.dtype not in _ONNX:
        raise Unexpected(f"{output.name} is of the type {output.dtype}, which has no array")
    fixed = b"souktns\x01" + bytes([_ONNX[output.dtype], len(output.shape)]) + bytes(6)
    sizes = b"".join(size.to_bytes(8, "little") for size in output.shape)
    return (fixed + sizes).ljust(-(-len(fixed + sizes) // 64) * 64, b"\0")


def is_safetensors(dtype: np.dtype[Any]) -> bool:
    """Whether it is one of these types."""
    name: str = cast("Any", dtype).name
    return any(name == row[0] for row in _TYPES)


def _ml_dtype(souk_name: str) -> np.dtype[Any]:
    """NumPy's type for what souk calls so."""
    name = next(row[0] for row in _TYPES if row[2] == souk_name)
    try:
        import ml_dtypes  # pyright: ignore[reportMissingImports]

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        raise InputRefused(
            f"NumPy alone has no element type {souk_name}", "pip install -U ml_dtypes"
        ) from error


def safetensors_header(name: str, array: NDArray[Any]) -> bytes:
    """What comes before the elements of a file of one tensor."""
    numpy_name: str = cast("Any", array.dtype).name
    kind = next(row[1] for row in _TYPES if row[0] == numpy_name)
    facts = {"dtype": kind, "shape": list(array.shape), "data_offsets": [0, array.nbytes]}
    text = json.dumps({name: facts}).encode()
    # So that elements lie aligned.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _safetensors_elements_at(file: memoryview) -> int:
    """Where the elements of a file begin."""
    if len(file) < 8:
        raise Unexpected(f"a file of safetensors of {len(file)} bytes came")
    return 8 + int.from_bytes(file[:8], "little")
