"""What a job made; inputs cut into batches, and answers put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._contents import Inputs, array_of
from ._credits import Credits
from .errors import InputRefused


class Outputs(dict[str, NDArray[Any]]):
    """The outputs of a job by name, and what they cost."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], job: str, cost: Credits) -> None:
        super().__init__(arrays)
        self.job = job
        """The job's id: `client.job` has its receipts and what happened to it."""
        self.cost = cost
        """What was paid."""


def cut(inputs: Inputs, size: int) -> Iterator[dict[str, NDArray[Any]]]:
    """The inputs in batches of so many rows of each, the last with what is left."""
    if size < 1:
        raise InputRefused(f"a batch of {size} rows is none", "give batch=1 or more")
    arrays = {name: array_of(name, value) for name, value in inputs.items()}
    lengths = {name: (len(one) if one.ndim else 0) for name, one in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputRefused(
            f"inputs that are cut into batches have equally many rows, one or more: {told or '-'}",
            "give what is the same for all to `stream`, batch by batch",
        )
    for start in range(0, next(iter(lengths.values())), size):
        yield {name: one[start : start + size] for name, one in arrays.items()}


def joined(answers: Sequence[Outputs]) -> Outputs:
    """Answers of batches as one: rows behind rows."""
    cost = sum((one.cost for one in answers), start=Credits(0))
    if any(array.ndim == 0 for one in answers for array in one.values()):
        raise InputRefused(
            "an output without rows cannot be put together", "use `stream`, and do it by hand"
        )
    arrays = {name: np.concatenate([one[name] for one in answers]) for name in answers[0]}
    return Outputs(arrays, answers[-1].job, cost)
