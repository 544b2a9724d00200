"""A testnet for all tests, and what they run on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from samples import Digits

import souk


@pytest.fixture(scope="session")
def net() -> Iterator[souk.Testnet]:
    """A market that the tests share; what one leaves there must not matter to another."""
    with souk.testnet() as net:
        yield net


@pytest.fixture(scope="session")
def digits() -> Digits:
    """A classifier of digits, and images that it never saw."""
    folder = Path(__file__).parents[3] / "testnet" / "models" / "digits"
    images: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = np.load(folder / "images.npy")
    labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.load(folder / "labels.npy")
    return Digits(folder / "digits.onnx", images, labels)
