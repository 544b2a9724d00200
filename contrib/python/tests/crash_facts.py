"""What becomes of jobs when processes are killed."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from samples import powers, rotation

import souk


def pid_of(net: souk.Testnet, name: str) -> int:
    """The process of a node."""
    return dict(net.up["nodes"])[name]


def a_gateway_that_is_killed_buys_no_job_twice() -> None:
    with souk.testnet() as net:
        before = net.account().available
        work, inputs = powers(40), {"x": rotation()}
        job = net.submit(work, inputs, key="once", real=True)
        # The testnet starts it again.
        os.kill(pid_of(net, "gateway"), signal.SIGKILL)
        # Asked again by one who got no answer, while there is none to ask.
        again = net.submit(work, inputs, key="once", real=True)
        assert again.id == job.id
        y = job.result()["y"]
        np.testing.assert_array_equal(y, np.roll(np.eye(1024, dtype=np.float32), 41, axis=1))
        assert len(net.jobs()) == 1
        paid = sum((one.paid for one in net.jobs()), start=souk.Credits(0))
        # What the first life had bought may be held until its lease ends.
        account = net.account()
        assert account.available + account.escrow == before - paid
        assert paid > souk.Credits(0)
        assert all(receipt.verify() for receipt in job.receipts)


def a_gateway_that_is_killed_is_waited_for() -> None:
    with souk.testnet() as net:
        job = net.submit(powers(40), {"x": rotation()}, real=True)
        events = job.events()
        first = next(events)
        assert isinstance(first, souk.Leased)
        os.kill(pid_of(net, "gateway"), signal.SIGKILL)
        *_, last = events
        assert isinstance(last, souk.Ended)
        assert last.state == "done"
        assert job.result()["y"].shape == (1024, 1024)


def a_job_without_its_only_provider_fails_and_says_why() -> None:
    with souk.testnet() as net:
        job = net.submit(powers(200), {"x": rotation()}, real=True, wait=0.0)
        for event in job.events():
            if isinstance(event, souk.Running):
                os.kill(pid_of(net, "provider-1"), signal.SIGKILL)
        with pytest.raises(souk.JobFailed) as raised:
            job.result()
        assert raised.value.job == job.id
        assert raised.value.code
        assert raised.value.failed_before, "the loss of the provider"
        assert "resume" in raised.value.hint
        assert job.cost == souk.Credits(0)


def a_job_that_is_cancelled_is_stopped_and_can_go_on() -> None:
    with souk.testnet() as net:
        job = net.submit(powers(100), {"x": rotation()}, real=True)
        for event in job.events():
            if isinstance(event, souk.Running):
                job.cancel()
        assert job.state == "interrupted"
        with pytest.raises(souk.JobStopped) as raised:
            job.result()
        assert raised.value.job == job.id
        assert job.resume().result()["y"].shape == (1024, 1024)


def no_validator_that_answers_is_no_market() -> None:
    validators = ("validator-1", "validator-2", "validator-3")
    with souk.testnet() as net:
        for name in validators:
            os.kill(pid_of(net, name), signal.SIGSTOP)
        try:
            with souk.Client(net.url, net.token, patience=0) as client:
                with pytest.raises(souk.MarketUnreachable) as raised:
                    client.status()
                assert raised.value.retryable
                assert raised.value.hint
        finally:
            for name in validators:
                os.kill(pid_of(net, name), signal.SIGCONT)
