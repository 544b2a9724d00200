"""Starts `souk openai` for a market's folder: a server for OpenAI's clients, for as long as one
works with it.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._binary import find_binary
from .errors import TextServerFailed

if TYPE_CHECKING:
    from typing_extensions import Self

# How long the server may take to settle what is open, before it is left to end by itself.
_DOWN_SECONDS = 30.0


@dataclass(frozen=True)
class TextServer:
    """A server for OpenAI's clients, which buys the models of the market by the token.

    It stops when the block is left, on `close`, and when Python ends, however it ends.
    """

    base_url: str
    """Where it answers, for `base_url` of OpenAI's client."""
    api_key: str = field(repr=False)
    """What opens it, for `api_key`."""
    process: subprocess.Popen[bytes] = field(repr=False, compare=False)
    """The process of the server."""

    def close(self) -> None:
        """Stop it, once what is open is settled."""
        atexit.unregister(self.close)
        with suppress(subprocess.TimeoutExpired, ValueError):
            self.process.communicate(timeout=_DOWN_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def start_text_server(
    folder: Path, budget: float | None, binary: str | os.PathLike[str] | None
) -> TextServer:
    """Start a server for the account of a market's folder."""
    command = [str(find_binary(binary)), "--dir", str(folder), "--json", "openai"]
    command += ["--listen", "127.0.0.1:0", "--until-stdin-closes"]
    if budget is not None:
        command += ["--budget", f"{budget:f}"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise TextServerFailed(f"souk cannot be started: {error}") from error
    if process.stdout is None:
        raise AssertionError("it was started with a pipe")
    line = process.stdout.readline()
    told: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        told = dict(json.loads(line))
    if "url" not in told:
        rest, _ = process.communicate(timeout=_DOWN_SECONDS)
        raise _failure(folder, line + rest)
    key = Path(str(told["key_file"])).read_text(encoding="utf-8").strip()
    server = TextServer(str(told["url"]), key, process)
    atexit.register(server.close)
    return server


def _failure(folder: Path, said: bytes) -> TextServerFailed:
    cause, hint = "it did not say why", f"its own words: souk --dir {folder} openai"
    with suppress(ValueError, TypeError, KeyError):
        error = json.loads(said)["error"]
        cause, hint = str(error["cause"]), str(error["hint"])
    return TextServerFailed(f"`souk openai` for {folder} did not start: {cause}", hint)
