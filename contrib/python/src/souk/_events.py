"""What happens to a job, as `Job.events` tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast

from ._credits import Credits


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """Leases are bought."""

    at: datetime
    attempt: int
    """How often leases were bought before."""
    leases: tuple[int, ...]
    held: Credits
    """What is held for them until they are settled."""

    def __str__(self) -> str:
        many = "lease" if len(self.leases) == 1 else "leases"
        return f"{len(self.leases)} {many} bought; {self.held} are held until settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A provider has what it needs of the buyer."""

    at: datetime
    provider: str
    pieces: int
    there_before: int
    """How many of the pieces it had already."""
    bytes: int
    """What was sent."""

    def __str__(self) -> str:
        there = f"{self.there_before} of {self.pieces} pieces there already"
        return f"{_short(self.provider)} fetched {self.bytes:,} bytes, {there}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A provider has compiled its parts."""

    at: datetime
    provider: str

    def __str__(self) -> str:
        return f"{_short(self.provider)} is ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A provider's device runs a part."""

    at: datetime
    provider: str
    part: str

    def __str__(self) -> str:
        return f"{_short(self.provider)} runs {self.part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A provider is done."""

    at: datetime
    provider: str

    def __str__(self) -> str:
        return f"{_short(self.provider)} is done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The outputs are at the gateway, checked and not yet paid."""

    at: datetime

    def __str__(self) -> str:
        return "the outputs are here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A receipt has both signatures."""

    at: datetime
    lease: int
    paid: Credits

    def __str__(self) -> str:
        return f"the receipt of lease {self.lease} is signed: {self.paid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """A provider failed, and the job goes on without it."""

    at: datetime
    provider: str
    why: str
    kept: int
    """How many values are kept of what was computed."""

    def __str__(self) -> str:
        return f"{_short(self.provider)} failed ({self.why}); the job goes on without it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Something that this package has no word for."""

    at: datetime
    name: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.name}: {json.dumps(self.facts)}" if self.facts else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The job is over; always the last."""

    state: str
    """`done`, `failed`, `interrupted`, `abandoned` or `refused`."""
    cause: str | None
    """Why it failed, if it did."""

    def __str__(self) -> str:
        return f"{self.state}: {self.cause}" if self.cause else self.state


JobEvent: TypeAlias = (
    Leased | Uploaded | Ready | Running | Finished | Returned | Signed | Retrying | Happened | Ended
)


def event_of(at: datetime, told: object) -> JobEvent:
    """An event as the gateway tells it: a name, or a name and its facts."""
    if isinstance(told, Mapping) and len(cast("Mapping[str, Any]", told)) == 1:
        ((name, facts),) = cast("Mapping[str, Any]", told).items()
    else:
        name, facts = str(cast("object", told)), {}
    known = _KNOWN.get(name)
    try:
        if known is not None:
            return known(at, facts)
    except (KeyError, TypeError, ValueError, AttributeError):
        # Of another version: told as it came.
        pass
    whole = (
        cast("Mapping[str, Any]", facts)
        if isinstance(facts, Mapping)
        else {"is": cast("object", facts)}
    )
    return Happened(at=at, name=name, facts=whole)


def _leased(at: datetime, facts: Any) -> JobEvent:
    leases = tuple(int(lease) for _, lease, _ in facts["leases"])
    held = Credits(sum(int(held) for _, _, held in facts["leases"]))
    return Leased(at=at, attempt=int(facts["attempt"]), leases=leases, held=held)


def _uploaded(at: datetime, facts: Any) -> JobEvent:
    return Uploaded(
        at=at,
        provider=str(facts["provider"]),
        pieces=int(facts["pieces"]),
        there_before=int(facts["held"]),
        bytes=int(facts["bytes"]),
    )


def _signed(at: datetime, facts: Any) -> JobEvent:
    body = facts["receipt"]["body"]
    return Signed(at=at, lease=int(body["lease"]), paid=Credits(int(body["amount"])))


def _retrying(at: datetime, facts: Any) -> JobEvent:
    why = facts["why"]
    return Retrying(
        at=at,
        provider=str(facts["provider"]),
        why=why if isinstance(why, str) else json.dumps(why),
        kept=int(facts["kept"]),
    )


_KNOWN: dict[str, Callable[[datetime, Any], JobEvent]] = {
    "Leased": _leased,
    "Fetched": _uploaded,
    "Ready": lambda at, facts: Ready(at=at, provider=str(facts["provider"])),
    "Running": lambda at, facts: Running(
        at=at, provider=str(facts["provider"]), part=str(facts["part"])
    ),
    "Finished": lambda at, facts: Finished(at=at, provider=str(facts["provider"])),
    "Returned": lambda at, _: Returned(at=at),
    "Signed": _signed,
    "Retrying": _retrying,
}


def _short(account: str) -> str:
    return f"provider {account[:8]}"
