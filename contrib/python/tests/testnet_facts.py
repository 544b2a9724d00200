"""A testnet comes down however one leaves it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import souk

BRING_UP = """
import sys, souk
net = souk.testnet()
print(net.folder, net.up["pid"], flush=True)
"""


def wait_for_end(pid: int) -> None:
    """Until a process is no more; 30 s at most."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        readable, _, _ = select.select([descriptor], [], [], 30)
        assert readable, f"process {pid} still runs"
    finally:
        os.close(descriptor)


def brought_up(then: str) -> tuple[subprocess.Popen[str], Path, int]:
    """Another Python that has brought a testnet up, and goes on with `then`."""
    process = subprocess.Popen(
        [sys.executable, "-c", BRING_UP + then],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder, pid = process.stdout.readline().split()
    return process, Path(folder), int(pid)


@pytest.mark.parametrize("then", ["", "1 / 0", "sys.exit(3)", "with net: raise SystemExit"])
def a_python_that_ends_takes_it_down(then: str) -> None:
    process, folder, pid = brought_up(then)
    process.communicate()
    wait_for_end(pid)
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def a_python_that_is_killed_takes_it_down(number: signal.Signals) -> None:
    process, folder, pid = brought_up("sys.stdin.read()")
    keeper = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    process.send_signal(number)
    process.communicate()
    wait_for_end(pid)
    wait_for_end(keeper)
    assert not folder.exists()


def a_block_that_fails_takes_it_down() -> None:
    net = souk.testnet()
    pid = int(net.up["pid"])
    assert net.folder.exists()
    with pytest.raises(ZeroDivisionError), net:
        _ = 1 / 0
    wait_for_end(pid)
    assert not net.folder.exists()
    net.close()


def a_folder_that_is_given_keeps_its_market(tmp_path: Path) -> None:
    with souk.testnet(tmp_path / "market", validators=1) as net:
        market = net.status().market
        assert len(net.validators()) == 1
    with souk.testnet(tmp_path / "market") as net:
        assert net.status().market == market


def what_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(souk.TestnetFailed, match="99"):
        souk.testnet(tmp_path / "market", validators=99)
    with souk.testnet(tmp_path / "one") as net:
        assert net.status().name
        with pytest.raises(souk.TestnetFailed, match="did not come up"):
            souk.testnet(tmp_path / "one")


def no_program_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(souk.BinaryNotFound, match="is no program"):
        souk.testnet(binary=tmp_path / "souk")
    monkeypatch.delenv("SOUK_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "souk_bin", None)
    with pytest.raises(souk.BinaryNotFound) as raised:
        souk.testnet()
    assert "pip install" in raised.value.hint
