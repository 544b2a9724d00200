"""Where the gateway is and which token it takes, where one does not say it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from .errors import Unauthorized

# Where a gateway answers where nothing else is said.
URL = "http://127.0.0.1:7800"

# The folder of a testnet where nothing else is said.
FOLDER = "souk-testnet"

_TOKENS = Path("buyer", "http-tokens.json")


@dataclass(frozen=True)
class Found:
    """A gateway, and what opens it."""

    url: str
    token: str = field(repr=False)


def find(url: str | None, token: str | None, folder: str | os.PathLike[str] | None) -> Found:
    """Takes what is given, else $SOUK_URL and $SOUK_TOKEN, else what the market's folder has."""
    address = url or os.environ.get("SOUK_URL") or URL
    known = token or os.environ.get("SOUK_TOKEN")
    if known:
        return Found(address, known)
    return Found(address, _token_in(market_folder(folder)))


def market_folder(folder: str | os.PathLike[str] | None) -> Path:
    """The market's folder: what is given, else $SOUK_DIR, else that of a testnet."""
    return Path(folder or os.environ.get("SOUK_DIR") or FOLDER)


def _token_in(folder: Path) -> str:
    path = folder / _TOKENS
    hint = "give token=… or folder=…, set SOUK_TOKEN or SOUK_DIR, or use souk.testnet()"
    try:
        tokens = json.loads(path.read_text(encoding="utf-8"))
        return str(tokens["trade"])
    except OSError as error:
        reason = error.strerror or error
        raise Unauthorized(f"no token is known: cannot read {path}: {reason}", hint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unauthorized(f"no token is known: {path} holds none", hint) from error
