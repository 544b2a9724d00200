"""What happens to a job, as `Job.events` tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast

from . import _models  # pyright: ignore[reportPrivateUsage]
from ._credits import Credits
from ._decode import decode, time_of
from .errors import Unexpected


class Leased(_models.LeasedEvent):
    """Leases are bought."""

    __slots__ = ()

    @property
    def escrow(self) -> Credits:
        """What is held for them until they are settled."""
        return Credits(sum(one.escrow.micro for one in self.leases))

    def __str__(self) -> str:
        many = "lease" if len(self.leases) == 1 else "leases"
        return f"{len(self.leases)} {many} bought; {self.escrow} are held until settled"


class Uploaded(_models.FetchedEvent):
    """A provider has what it needs of the buyer."""

    __slots__ = ()

    def __str__(self) -> str:
        there = f"{self.pieces_cached} of {self.pieces} pieces there already"
        return f"{_short(self.provider)} fetched {self.bytes:,} bytes, {there}"


class Ready(_models.ReadyEvent):
    """A provider has compiled its parts."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{_short(self.provider)} is ready"


class Running(_models.RunningEvent):
    """A provider's device runs a part."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{_short(self.provider)} runs {self.part}"


class Finished(_models.FinishedEvent):
    """A provider is done."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{_short(self.provider)} is done"


class Returned(_models.ReturnedEvent):
    """The outputs are at the gateway, checked and not yet paid."""

    __slots__ = ()

    def __str__(self) -> str:
        return "the outputs are here"


class Signed(_models.SignedEvent):
    """A receipt has both signatures."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"the receipt of lease {self.lease} is signed: {self.paid}"


class Retrying(_models.RetryingEvent):
    """A provider failed, and the job goes on without it."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{_short(self.provider)} failed ({self.cause}); the job goes on without it"


class Unpaid(_models.RefusedEvent):
    """A lease is not paid for."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{_short(self.provider)} is not paid: {self.cause}"


class NotCommanded(_models.NotCommandedEvent):
    """The market did not end a lease, dispute it or begin its work; its rules will close it."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"lease {self.lease} is left to the market's rules: {self.cause}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """Something that this package has no word for."""

    number: int
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
    Leased
    | Uploaded
    | Ready
    | Running
    | Finished
    | Returned
    | Signed
    | Retrying
    | Unpaid
    | NotCommanded
    | Happened
    | Ended
)

_KNOWN: dict[str, type[JobEvent]] = {
    "leased": Leased,
    "fetched": Uploaded,
    "ready": Ready,
    "running": Running,
    "finished": Finished,
    "returned": Returned,
    "signed": Signed,
    "retrying": Retrying,
    "refused": Unpaid,
    "not_commanded": NotCommanded,
}


def event_of(told: object) -> JobEvent:
    """An event as the gateway tells it: a number, a time, a word, and the facts beside."""
    if not isinstance(told, Mapping):
        raise Unexpected(f"the gateway told {told!r:.60} of a job, where an event belongs")
    facts = dict(cast("Mapping[str, Any]", told))
    name = str(facts.pop("event", ""))
    known = _KNOWN.get(name)
    if known is not None:
        try:
            return decode(known, facts)
        except Unexpected:
            # Of another version: told as it came.
            pass
    at, number = time_of(facts.pop("at", None)), facts.pop("number", 0)
    return Happened(number=int(number), at=at, name=name, facts=facts)


def _short(account: str) -> str:
    return f"provider {account[:8]}"
