"""A market of real processes on this machine, for as long as one works with it."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from . import _find, _keeper
from ._binary import find_binary
from ._sync.client import Client
from .errors import TestnetFailed

# How long a testnet may take to come up; on a busy machine it is slow.
_UP_SECONDS = 60.0

# And to come down, before it is left to end by itself.
_DOWN_SECONDS = 30.0


class Testnet(Client):
    """A client of a market that was started for it: three validators, four providers (one sells
    this machine's CPU, three sell emulated devices), a gateway, and an account with 100 credits.

    It comes down when the block is left, on `close`, and when Python ends, however it ends. Without
    a folder it leaves nothing; with one the market stays there, and comes up again as it was.
    """

    # Not a test, whatever its name begins with.
    __test__ = False

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        binary: str | os.PathLike[str] | None = None,
        validators: int | None = None,
        timeout: float = 60.0,
        patience: float = 15.0,
    ) -> None:
        program = find_binary(binary)
        is_own = folder is None
        place = tempfile.mkdtemp(prefix="souk-") if folder is None else os.fspath(folder)
        self.folder = Path(place).absolute()
        """Where the market is."""
        self._keeper = _start(program, self.folder, is_own, validators)
        try:
            self.up = _ready(self._keeper, self.folder)
            """What `souk testnet up` said: its processes, and where the gateway answers."""
            found = _find.find(str(self.up["url"]), None, self.folder)
        except BaseException:
            _end(self._keeper)
            raise
        atexit.register(_end, self._keeper)
        super().__init__(
            found.url, found.token, folder=self.folder, timeout=timeout, patience=patience
        )

    def close(self) -> None:
        """Take it down."""
        super().close()
        atexit.unregister(_end)
        _end(self._keeper)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _start(
    program: Path, folder: Path, is_own: bool, validators: int | None
) -> subprocess.Popen[bytes]:
    arguments = [] if validators is None else ["--validators", str(validators)]
    keeper = [sys.executable, "-I", _keeper.__file__, str(program), str(folder)]
    try:
        return subprocess.Popen(
            [*keeper, str(int(is_own)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise TestnetFailed(f"Python cannot start itself: {error}") from error


def _ready(keeper: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    """What the testnet says when it is up."""
    if keeper.stdout is None:
        raise AssertionError("it was started with a pipe")
    pid, line = keeper.stdout.readline(), keeper.stdout.readline()
    told: Any = None
    with suppress(ValueError):
        told = json.loads(line)
    if isinstance(told, dict) and "url" in told:
        return {**cast("dict[str, Any]", told), "pid": int(pid)}
    said = _end(keeper)
    cause, hint = said or "it did not say why", "its own words: `souk testnet up`"
    with suppress(ValueError, TypeError, KeyError):
        error = json.loads(line or said)["error"]
        cause, hint = str(error["cause"]), str(error["hint"])
    raise TestnetFailed(f"the testnet in {folder} did not come up: {cause}", hint)


def _end(keeper: subprocess.Popen[bytes]) -> str:
    """Let it end and wait until all is down; what it said of errors."""
    if keeper.poll() is not None and keeper.stdin and keeper.stdin.closed:
        return ""
    try:
        _, errors = keeper.communicate(timeout=_DOWN_SECONDS)
    except (subprocess.TimeoutExpired, ValueError):
        return ""
    return errors.decode(errors="replace").strip()
