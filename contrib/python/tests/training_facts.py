"""Runs of training: their losses, their results, and what comes of them when they are stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from samples import Digits

import souk

# The losses of the first steps by PyTorch; scheduler/tests/reference/training.py printed them.
LOSSES = (16.618235, 17.656204, 18.359743)
BATCH = 36


@pytest.fixture
def moved(digits: Digits, tmp_path: Path) -> Path:
    """Files with images, and each digit plus three; all of them, and the second batch."""
    labels = (digits.labels + 3) % 10
    second = slice(BATCH, 2 * BATCH)
    np.save(tmp_path / "images.npy", digits.images)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "held-images.npy", digits.images[second])
    np.save(tmp_path / "held-labels.npy", labels[second])
    return tmp_path


def begin(net: souk.Testnet, digits: Digits, moved: Path, steps: int) -> souk.Training:
    return net.train(
        digits.model,
        inputs={"images": moved / "images.npy"},
        target=("labels", moved / "labels.npy"),
        held_out={"images": moved / "held-images.npy", "labels": moved / "held-labels.npy"},
        out=moved / "tuned.onnx",
        loss="cross-entropy",
        batch=BATCH,
        lr=2e-4,
        in_order=True,
        steps=steps,
        keep=1,
        eval_every=1,
        budget=souk.Credits.of(20),
        device=["cpu"],
        real=True,
    )


def a_run_is_a_loop_over_its_losses(net: souk.Testnet, digits: Digits, moved: Path) -> None:
    with begin(net, digits, moved, 3) as training:
        steps = list(training)
        done = training.result()
    losses = [step.loss for step in steps if step.loss is not None]
    assert losses == pytest.approx(LOSSES, rel=1e-5)
    assert done.losses == tuple(losses)
    assert [step for step, _ in done.held_out] == [0, 1, 2, 3]
    # Held out is what the second step trains on.
    assert done.held_out[1][1] == pytest.approx(LOSSES[1], rel=1e-5)
    assert done.cost > souk.Credits(0)
    assert done.path.is_file()
    run = net.trainings()[0]
    assert (run.state, run.steps_done, run.steps) == ("done", 3, 3)
    assert run.held_out_loss == pytest.approx(done.held_out[-1][1])
    facts = net.training(run.id[:6])
    assert [point.step for point in facts.curve] == [1, 2, 3]
    losses = [loss for _, loss in done.held_out]
    assert [point.loss for point in facts.held_out] == pytest.approx(losses)


def a_stopped_run_goes_on_later(net: souk.Testnet, digits: Digits, moved: Path) -> None:
    training = begin(net, digits, moved, 12)
    for step in training:
        if step.step >= 2:
            break
    training.stop()
    with pytest.raises(souk.TrainingFailed) as failed:
        training.result()
    assert "interrupted" in str(failed.value)
    resumed = net.resume_training(training.path, budget=30)
    assert len(resumed.result().losses) == 12
    report = json.loads((moved / "tuned.json").read_text(encoding="utf-8"))
    assert report["steps_done"] == 12


def what_cannot_be_trained_says_why(net: souk.Testnet, digits: Digits, tmp_path: Path) -> None:
    with pytest.raises(souk.TrainingFailed) as failed:
        net.train("bundled", tmp_path / "none.jsonl", out=tmp_path / "out").result()
    assert str(tmp_path / "none.jsonl") in failed.value.detail
    assert failed.value.facts == {"kind": "input", "exit_code": 3, "steps_done": 0}
    with pytest.raises(souk.TrainingFailed) as failed:
        net.train(digits.model, tmp_path / "none.jsonl", out=tmp_path / "out").result()
    assert "not a GGUF file" in failed.value.detail
    assert "config.json" in failed.value.hint
