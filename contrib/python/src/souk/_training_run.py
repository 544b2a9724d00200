"""Runs `souk train` for a market's folder: its losses come line by line, then its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

from ._binary import find_binary
from ._credits import Credits
from .errors import TrainingFailed

if TYPE_CHECKING:
    from os import PathLike

    from ._models import Amount

# How long a run may take for the steps under way once it is stopped.
_STOP_SECONDS = 60.0

PathText: TypeAlias = "str | PathLike[str]"


class TrainOptions(TypedDict, total=False):
    """Options of `souk train`, under their names there."""

    budget: Amount
    """The most that the run may cost, in credits."""
    max_price: Amount
    """The most for a device-second."""
    device: Sequence[str]
    """Kinds of devices, or parts of their names, any of which will do."""
    real: bool
    """Only real devices, even in a testnet."""
    epochs: int
    """Passes over the examples."""
    steps: int
    """Steps, instead of passes."""
    batch: int
    """Examples of a step."""
    lr: float
    """The learning rate."""
    optimizer: str
    """`adamw` or `sgd`."""
    momentum: float
    weight_decay: float
    seed: int
    in_order: bool
    """Examples in the order of the file."""
    keep: int
    """The parameters come back after so many steps."""
    eval_every: int
    """The steps from one evaluation of the held-out examples to the next."""
    rank: int
    """The rank of the adapter of a language model."""
    alpha: float
    targets: Sequence[str]
    """The matrices of each layer that get an adapter."""
    length: int
    """The most tokens of an example."""
    loss: str
    """For an ONNX model, `cross-entropy` or `mse`."""
    loss_of: str
    """The output of which to take the loss."""
    freeze: Sequence[str]
    """Beginnings of the names of initialisers that are not trained."""


@dataclass(frozen=True)
class TrainingStep:
    """A step that is done, or an evaluation beside it."""

    step: int
    """Steps done."""
    steps: int
    """Steps in all."""
    loss: float | None
    """The loss of the step's batch; None if this is an evaluation."""
    held_out_loss: float | None
    """The loss of the held-out examples, if this is an evaluation."""
    spent_max: Credits
    """The most that the run has cost so far."""


@dataclass(frozen=True)
class TrainingResult:
    """A run that did all its steps."""

    path: Path
    """The adapter's folder, or the model."""
    losses: tuple[float, ...]
    """The loss of each step."""
    held_out: tuple[tuple[int, float], ...]
    """The steps after which held-out examples were evaluated, and their losses."""
    cost: Credits
    """What its leases cost."""
    report: Mapping[str, Any] = field(repr=False)
    """All that `train.json` says: the recipe, the digests, the receipts."""


def arguments(options: Mapping[str, object]) -> list[str]:
    """Options as the command line has them."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif name == "targets":
            words += [flag, ",".join(cast("Sequence[str]", value))]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for one in cast("Sequence[object]", value):
                words += [flag, str(one)]
        elif isinstance(value, Credits):
            words += [flag, f"{value.micro / 1e6:.6f}"]
        else:
            words += [flag, str(value)]
    return words


class TrainingRun:
    """The process of a run."""

    def __init__(self, folder: Path, words: Sequence[str], binary: PathText | None) -> None:
        command = [str(find_binary(binary)), "--dir", str(folder), "--output", "jsonl", "train"]
        try:
            self._process = subprocess.Popen(
                [*command, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise TrainingFailed(f"souk cannot be started: {error}") from error
        # What was said and not asked for; None is the end.
        self._said: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        # A run must not wait for somebody who reads.
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        if self._process.stdout is None:
            raise AssertionError("it was started with a pipe")
        for line in iter(self._process.stdout.readline, b""):
            with suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict):
                    self._said.put(cast("dict[str, Any]", told))
        self._process.wait()
        self._said.put(None)

    def read(self) -> dict[str, Any] | None:
        """The next line: a step, an evaluation, the report or an error; None after the last."""
        told = self._said.get()
        if told is None:
            # Whoever asks again gets the same answer.
            self._said.put(None)
        return told

    def stop(self) -> None:
        """Stop after the steps under way, which are kept and paid; at once if that takes long."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def step_of(told: Mapping[str, Any]) -> TrainingStep:
    """A step of a line."""
    return TrainingStep(
        step=int(told["step"]),
        steps=int(told["steps"]),
        loss=told.get("loss"),
        held_out_loss=told.get("held_out_loss"),
        spent_max=Credits(int(told["spent_micro_max"])),
    )


def result_of(told: Mapping[str, Any], out: Path) -> TrainingResult:
    """The result of a report."""
    evaluations = cast("Mapping[str, Any]", told.get("held_out") or {})
    held_out = cast("list[dict[str, Any]]", evaluations.get("losses", []))
    return TrainingResult(
        path=out,
        losses=tuple(told["losses"]),
        held_out=tuple((int(one["step"]), one["loss"]) for one in held_out),
        cost=Credits(int(told["spent_micro"])),
        report=told,
    )


def failure_of(told: Mapping[str, Any] | None, out: Path) -> TrainingFailed:
    """Why a run ended without its result."""
    cause, hint = "it did not say why", f'client.resume_training("{out}") goes on with it'
    with suppress(KeyError, TypeError):
        error = cast("Mapping[str, Any]", told)["error"]
        cause = str(error["cause"])
        hint = str(error["hint"]) or hint
    return TrainingFailed(f"training {os.fspath(out)}: {cause}", hint)
