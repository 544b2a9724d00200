"""What a gateway tells those who follow it, as it comes: server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ._decode import decode, decode_rows
from ._events import JobEvent, event_of
from ._models import Account, Depth, JobState, MarketClass, Trades
from ._table import Table


@dataclass(frozen=True)
class Message:
    """One event."""

    topic: str
    id: str
    data: str


@dataclass
class Parser:
    """Takes bytes as they come, gives the events that are whole.

    Lines end in a line feed only, as the gateway writes them: JSON may hold whatever else some
    take for the end of a line.
    """

    _rest: bytes = b""
    _fields: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def take(self, chunk: bytes) -> Iterator[Message]:
        """The events that end in this chunk."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            message = self._line(line.decode().removesuffix("\r"))
            if message is not None:
                yield message

    def _line(self, line: str) -> Message | None:
        if line:
            name, _, value = line.partition(":")
            self._fields.setdefault(name, []).append(value.removeprefix(" "))
            return None
        fields, self._fields = self._fields, {}
        if "event" not in fields and "data" not in fields:
            # A line of nothing but a comment: the gateway is there.
            return None
        last = {name: values[-1] for name, values in fields.items()}
        data = "\n".join(fields.get("data", []))
        return Message(last.get("event", "message"), last.get("id", ""), data)


What: TypeAlias = "Table[MarketClass] | Depth | Trades | Account | JobState | JobEvent | object"
"""The whole of what a topic is about; JSON where this package has no type for it."""


@dataclass(frozen=True, slots=True)
class Update:
    """Something that was told under a topic."""

    topic: str
    """What was followed; `reset` where what came between is not known any more."""
    id: str
    """The log's index when it was told, and its number."""
    what: What


def update_of(message: Message) -> Update:
    """A message of the stream as what it holds."""
    told = json.loads(message.data)
    return Update(message.topic, message.id, _what(message.topic.partition(":")[0], told))


def _what(topic: str, told: Any) -> What:
    if topic == "market":
        return decode_rows(MarketClass, told)
    if topic == "job":
        return event_of(told)
    known = {"depth": Depth, "trades": Trades, "account": Account, "jobs": JobState}.get(topic)
    return told if known is None else decode(known, told)
