"""What is asked of a gateway, as it takes it; answers and refusals; how long to wait between."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast
from urllib.parse import quote

import httpx

from ._credits import Credits
from ._decode import decode
from ._models import Amount, BidTerms, JobFacts, Limits, SessionTerms
from .errors import (
    Busy,
    GatewayUnreachable,
    InputRefused,
    MarketUnreachable,
    SoukError,
    Stopping,
    TooMany,
    Unexpected,
    error_of,
)

Json: TypeAlias = Any
"""What JSON says; whoever asked knows what it is."""

# The first pause before a question is asked again, and the longest.
_PAUSE_SECONDS = 0.05
_PAUSE_MOST_SECONDS = 1.0

# What a status says alone.
_OF_STATUS = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    421: "misdirected",
    429: "too_many",
    503: "stopping",
}


class Pauses:
    """How long to wait before a question is asked again, until patience ends."""

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._next = _PAUSE_SECONDS

    def after(self, error: SoukError, has_answered: bool) -> float | None:
        """The pause after a refusal; None where asking again would not help."""
        passes = isinstance(error, (Busy, TooMany, Stopping, MarketUnreachable))
        # One that never answered is rather not there than away for a moment.
        is_away = isinstance(error, GatewayUnreachable) and has_answered
        if not (passes or is_away) or time.monotonic() >= self._until:
            return None
        pause, self._next = self._next, min(self._next * 2, _PAUSE_MOST_SECONDS)
        return pause


def parameters(params: Mapping[str, object] | None) -> dict[str, str]:
    """Parameters of a path as text; those that are None are left out."""
    told = {True: "true", False: "false"}
    return {
        name: told.get(value, str(value)) if isinstance(value, bool) else str(value)
        for name, value in (params or {}).items()
        if value is not None
    }


def read_json(response: httpx.Response) -> Json:
    """What an answer says."""
    try:
        return response.json()
    except ValueError as error:
        told = f"what answers at {response.url} speaks no JSON"
        raise Unexpected(told, "is that a gateway of souk?") from error


def refused(response: httpx.Response) -> SoukError:
    """What is wrong, by an answer that is none."""
    path = response.request.url.path
    return refusal(response.request.method, path, response.status_code, response.content)


def refusal(method: str, path: str, status: int, body: bytes) -> SoukError:
    """What is wrong, by a status and what came with it."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if isinstance(problem, dict):
        found = cast("dict[str, Any]", problem)
        error = found.get("error")
        return error_of(found if error is None else _as_problem(status, error))
    told = f"{method} {path} was answered {status}"
    if method == "HEAD" and status in _OF_STATUS:
        # An answer without a body.
        return error_of({"code": _OF_STATUS[status], "detail": told})
    return Unexpected(told, "is that a gateway of souk?")


def _as_problem(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """An error of OpenAI's API, as a session answers, in the form of the gateway's problems."""
    codes = {400: "input", 402: "budget", 404: "not_found", 429: "too_many", 503: "no_plan"}
    code = codes.get(status, "unexpected")
    if error.get("code") == "market_unavailable":
        code = "market_unreachable"
    return {"code": code, "detail": error.get("message", ""), "retryable": status == 429}


def begun(told: object) -> JobFacts:
    """A job that has only just begun: nothing is bought yet."""
    empty: dict[str, object] = {"spent": 0, "escrow": 0, "leases": [], "outputs": []}
    return decode(JobFacts, {**empty, **cast("dict[str, Any]", told)})


def limited(limits: Limits | BidTerms | SessionTerms) -> dict[str, Any]:
    """Limits as the gateway takes them: amounts in micro-credits."""
    told: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    for name in ("budget", "max_price", "min_stake"):
        if name in told:
            told[name] = micro(name, told[name])
    for name in ("devices", "exclude", "regions"):
        if isinstance(told.get(name), str):
            raise InputRefused(f"{name} is a list", f"{name}=[{told[name]!r}]")
        if name in told:
            told[name] = list(cast("Sequence[str]", told[name]))
    return told


def micro(name: str, amount: Amount) -> int:
    """An amount in micro-credits."""
    try:
        return Credits.of(amount).micro
    except (ArithmeticError, ValueError, TypeError) as error:
        raise InputRefused(f"{name}: {error or amount}", "amounts are in credits: 0.5") from error


def quoted(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


def job_path(job: str) -> str:
    """Where a job is."""
    return f"/v1/jobs/{quoted(job)}"


def may_pass(error: SoukError) -> bool:
    """Whether it may be otherwise once a job of one's own is over."""
    return error.retryable or error.code in ("budget", "no_plan")
