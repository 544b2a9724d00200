# Made by sync.py from souk/_async/training.py; not written by hand.
"""Training: a run that one loops over for its losses."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._training_run import (
    TrainingResult,
    TrainingRun,
    TrainingStep,
    failure_of,
    result_of,
    step_of,
)
from .._twins import in_thread

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Training:
    """A run of training. Loop over it for its losses as they come, or ask for its result.

    The run goes on while nobody looks. It stops when the block is left, and with its client; what
    was kept by then stays, and `resume_training` of the client goes on with it.
    """

    def __init__(self, run: TrainingRun, out: Path) -> None:
        self._run = run
        self._last: Mapping[str, Any] | None = None
        self._looked_at = 0
        self.path = out
        """Where the result will be."""
        self.steps: list[TrainingStep] = []
        """The steps and evaluations that were looked at."""

    def __iter__(self) -> Generator[TrainingStep]:
        """Each step as it is done, and each evaluation of held-out examples."""
        while True:
            place = self._looked_at
            told = in_thread(self._run.read, place)
            if told is None:
                return
            if place != self._looked_at:
                continue
            self._looked_at += 1
            if "step" not in told:
                self._last = told
                continue
            step = step_of(told)
            self.steps.append(step)
            yield step

    def result(self) -> TrainingResult:
        """Wait for the result. Raises `TrainingFailed` if the run ends without it."""
        for _ in self:
            pass
        if self._last is None or "losses" not in self._last:
            done = max((step.step for step in self.steps), default=0)
            raise failure_of(self._run, self._last, self.path, done)
        return result_of(self._last, self.path)

    def stop(self) -> None:
        """Stop after the steps under way, which are kept and paid."""
        self.interrupt()
        in_thread(self._run.stop)

    def interrupt(self) -> None:
        """Ask for a stop after the steps under way, and do not wait for it."""
        self._run.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        last = self.steps[-1] if self.steps else None
        done = f"{last.step} of {last.steps} steps" if last else "no step yet"
        return f"<training of {self.path}: {done}>"
