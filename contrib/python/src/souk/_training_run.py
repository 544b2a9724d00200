"""Runs `souk train` for a market's folder: its losses come line by line, then its report."""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

from ._binary import find_binary
from ._credits import Credits
from .errors import TrainingFailed

if TYPE_CHECKING:
    from os import PathLike

    from ._models import Amount

# How long a run may take for the steps under way once it is stopped.
_STOP_SECONDS = 60.0

# How long it may take to end its lease once it is asked again.
_END_SECONDS = 30.0

# So many lines of what it says to people are remembered.
_LAST_WORDS = 20

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
    warmup: int
    """Steps over which the learning rate rises."""
    decay: str
    """`constant`, `linear` or `cosine`: how it falls after that."""
    clip: float
    """The largest norm of the gradient."""
    optimizer: str
    """`adamw` or `sgd`."""
    momentum: float
    weight_decay: float
    seed: int
    in_order: bool
    """Examples in the order of the file."""
    workers: int
    """Workers that train side by side, each on a lease of its own."""
    round: int
    """The steps of each worker after which the parameters of all are averaged."""
    keep: int
    """The parameters come back after so many steps."""
    eval_every: int
    """The steps from one evaluation of the held-out examples to the next."""
    full: bool
    """All weights of a language model instead of an adapter."""
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
    """Beginnings of the names of initialisers or weights that are not trained."""


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
    """The folder of the adapter or the model, or the ONNX model."""
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
    """The process of a run. It ends with Python, however Python ends."""

    def __init__(self, folder: Path, words: Sequence[str], binary: PathText | None) -> None:
        command = [str(find_binary(binary)), "--dir", str(folder), "--output", "jsonl", "train"]
        try:
            self._process = subprocess.Popen(
                [*command, *words, "--until-stdin-closes"],
                # It closes when Python is killed, and the run stops.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C reaches Python alone: for the run it would be a second request to stop.
                start_new_session=True,
            )
        except OSError as error:
            raise TrainingFailed(f"souk cannot be started: {error}") from error
        self._told: list[dict[str, Any]] = []
        self._last_words: deque[bytes] = deque(maxlen=_LAST_WORDS)
        self._is_over = False
        self._news = threading.Condition()
        self._is_interrupted = False
        atexit.register(self.stop)
        # A run must not wait for somebody who reads.
        listener = threading.Thread(target=self._listen, daemon=True)
        self._notices = threading.Thread(target=self._keep_notices, daemon=True)
        self._notices.start()
        listener.start()

    def _listen(self) -> None:
        if self._process.stdout is None:
            raise AssertionError("it was started with a pipe")
        for line in iter(self._process.stdout.readline, b""):
            with suppress(ValueError):
                told = json.loads(line)
                if isinstance(told, dict):
                    with self._news:
                        self._told.append(cast("dict[str, Any]", told))
                        self._news.notify_all()
        self._process.wait()
        self._notices.join()
        with self._news:
            self._is_over = True
            self._news.notify_all()
        atexit.unregister(self.stop)

    def _keep_notices(self) -> None:
        if self._process.stderr is None:
            raise AssertionError("it was started with a pipe")
        self._last_words.extend(iter(self._process.stderr.readline, b""))

    def read(self, place: int) -> dict[str, Any] | None:
        """The line at a place, from 0, once it is there; None after the last.

        A line is a step, an evaluation, the report or an error.
        """
        with self._news:
            self._news.wait_for(lambda: self._is_over or place < len(self._told))
            return self._told[place] if place < len(self._told) else None

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last lines that it wrote for people."""
        return b"".join(self._last_words).decode(errors="replace").strip()

    def interrupt(self) -> None:
        """Ask it once to stop after the steps under way, and do not wait."""
        if not self._is_interrupted and self._process.poll() is None:
            self._is_interrupted = True
            self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Stop after the steps under way, which are kept and paid; at once if that takes long."""
        self.interrupt()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
            return
        # The second request ends the lease at once.
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
            return
        self._process.kill()
        self._process.wait()


def step_of(told: Mapping[str, Any]) -> TrainingStep:
    """A step of a line."""
    return TrainingStep(
        step=int(told["step"]),
        steps=int(told["steps"]),
        loss=_number(told["loss"]) if "loss" in told else None,
        held_out_loss=_number(told["held_out_loss"]) if "held_out_loss" in told else None,
        spent_max=Credits(int(told["spent_micro_max"])),
    )


def _number(told: float | None) -> float:
    """A number, of which JSON writes `null` if it is infinite or none."""
    return math.nan if told is None else float(told)


def result_of(told: Mapping[str, Any], out: Path) -> TrainingResult:
    """The result of a report."""
    evaluations = cast("Mapping[str, Any]", told.get("held_out") or {})
    held_out = cast("list[dict[str, Any]]", evaluations.get("losses", []))
    return TrainingResult(
        path=out,
        losses=tuple(_number(loss) for loss in told["losses"]),
        held_out=tuple((int(one["step"]), _number(one["loss"])) for one in held_out),
        cost=Credits(int(told["spent_micro"])),
        report=told,
    )


def failure_of(
    run: TrainingRun, told: Mapping[str, Any] | None, out: Path, steps_done: int
) -> TrainingFailed:
    """Why a run ended without its result."""
    cause = run.last_words or "it did not say why"
    hint = f'client.resume_training("{out}") goes on with it'
    facts: dict[str, Any] = {"kind": None, "exit_code": run.exit_code, "steps_done": steps_done}
    with suppress(KeyError, TypeError):
        error = cast("Mapping[str, Any]", told)["error"]
        cause = str(error["cause"])
        facts["kind"] = error.get("kind")
        hint = str(error["hint"]) or hint
    return TrainingFailed(f"training {os.fspath(out)}: {cause}", hint, facts=facts)
