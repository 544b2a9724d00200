"""What becomes of the process of a run of training, shown by a program that speaks like it."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from souk._async.training import AsyncTraining
from souk._sync.training import Training
from souk._training_run import TrainingRun, step_of
from souk.errors import TrainingFailed

# It says one step, waits for requests to stop, and notes each of them in a file.
PROGRAM = """#!{python}
import json, os, signal, sys, threading, time
folder = sys.argv[2]
def note(word):
    with open(folder + "/requests", "a") as file:
        file.write(word + "\\n")
def say(step):
    told = {{"step": step, "steps": 9, "loss": 0.5, "spent_micro_max": 3}}
    print(json.dumps(told), flush=True)
def on_signal(*_):
    note("interrupt")
    print("the lease is closed", file=sys.stderr, flush=True)
    say(2)
    time.sleep({delay})
    os._exit(130)
signal.signal(signal.SIGINT, on_signal)
def listen():
    sys.stdin.read()
    note("closed")
    os._exit(7)
threading.Thread(target=listen, daemon=True).start()
say(1)
while True:
    time.sleep(0.01)
"""


def write_program(folder: Path, delay: float = 0.0) -> Path:
    binary = folder / "souk"
    binary.write_text(PROGRAM.format(python=sys.executable, delay=delay), encoding="utf-8")
    binary.chmod(0o755)
    return binary


def begin(folder: Path, delay: float = 0.0) -> TrainingRun:
    return TrainingRun(folder, [], write_program(folder, delay))


def requests(folder: Path) -> list[str]:
    path = folder / "requests"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def wait_for_request(folder: Path) -> list[str]:
    end = time.monotonic() + 20
    while not requests(folder) and time.monotonic() < end:
        time.sleep(0.01)
    return requests(folder)


def a_cancelled_task_still_stops_its_run(tmp_path: Path) -> None:
    async def work() -> TrainingRun:
        run = begin(tmp_path, delay=0.2)
        with anyio.CancelScope() as scope:
            async with AsyncTraining(run, tmp_path) as training:
                async for _ in training:
                    scope.cancel()
                    break
        assert scope.cancel_called
        return run

    assert asyncio.run(work()).exit_code == 130
    assert requests(tmp_path) == ["interrupt"]


def a_run_stops_when_its_python_is_killed(tmp_path: Path) -> None:
    write_program(tmp_path)
    words = f"""
import sys
from souk._training_run import TrainingRun
from pathlib import Path
run = TrainingRun(Path({str(tmp_path)!r}), [], {str(tmp_path / "souk")!r})
run.read(0)
print("begun", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as python:
        assert python.stdout is not None
        assert python.stdout.readline() == b"begun\n"
        python.kill()
    assert wait_for_request(tmp_path) == ["closed"]


def a_run_stops_when_its_python_ends(tmp_path: Path) -> None:
    write_program(tmp_path)
    words = f"""
from souk._training_run import TrainingRun
from pathlib import Path
TrainingRun(Path({str(tmp_path)!r}), [], {str(tmp_path / "souk")!r}).read(0)
"""
    subprocess.run([sys.executable, "-c", words], check=True, timeout=60)
    assert requests(tmp_path) == ["interrupt"]


def a_run_hears_no_interrupt_of_its_terminal(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.read(0)
    assert os.getpgid(run.pid) != os.getpgid(0)
    run.stop()
    assert requests(tmp_path) == ["interrupt"]


def a_second_request_comes_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("souk._training_run._STOP_SECONDS", 0.2)
    run = begin(tmp_path, delay=1.0)
    run.read(0)
    run.stop()
    assert requests(tmp_path) == ["interrupt", "interrupt"]
    assert run.exit_code == 130, "it was not killed"


def a_line_that_one_reader_gave_up_is_there_for_the_next(tmp_path: Path) -> None:
    async def work() -> list[list[int]]:
        run = begin(tmp_path)
        training = AsyncTraining(run, tmp_path)
        first: list[int] = []

        async def look() -> None:
            async for step in training:
                first.append(step.step)

        # The second line comes after the reader that waits for it is cancelled.
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(look(), 1.5)
        run.interrupt()
        return [first, [step.step async for step in training]]

    assert asyncio.run(work()) == [[1], [2]]


def a_failure_has_the_last_words_and_how_far_the_run_was(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.read(0)
    training = Training(run, tmp_path)
    training.stop()
    with pytest.raises(TrainingFailed) as failed:
        training.result()
    assert "the lease is closed" in failed.value.detail
    assert failed.value.facts == {"kind": None, "exit_code": 130, "steps_done": 2}


def a_loss_that_is_no_number_is_nan() -> None:
    told = {"step": 1, "steps": 2, "held_out_loss": None, "spent_micro_max": 0}
    step = step_of(told)
    assert step.loss is None
    assert step.held_out_loss is not None
    assert math.isnan(step.held_out_loss)


def an_interrupt_is_sent_once(tmp_path: Path) -> None:
    run = begin(tmp_path, delay=0.2)
    run.read(0)
    run.interrupt()
    run.interrupt()
    run.stop()
    assert requests(tmp_path) == ["interrupt"]
