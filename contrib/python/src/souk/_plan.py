"""A plan: what would run where, for how long and at what price, in words and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, cast

from ._credits import Credits


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the model, and who would run it."""

    number: int
    device: str
    """With `(emulated)` behind it where it is."""
    emulated: bool
    provider: str
    """The provider's account."""
    provider_name: str
    operators: int
    start: float
    """When it would begin, in seconds from the start."""
    busy: float
    """How long its device would compute, in seconds."""
    cost: Credits
    critical: bool
    """Whether the whole waits for it."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another plan that could be had."""

    devices: tuple[str, ...]
    seconds: float
    cost: Credits
    against_plan: str
    """What it gives and takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """Asks that do not suit, for one cause."""

    cause: str
    asks: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job would cost and take, and who would run it. No money has moved."""

    hash: str
    cost: Credits
    escrow: Credits | None
    """What is held until the job is settled; what is not used returns."""
    seconds: float
    """The whole of it: upload, wait and compute."""
    upload: float
    wait: float
    compute: float
    parts: tuple[Part, ...]
    alternatives: tuple[Alternative, ...]
    asks_seen: int
    asks_eligible: int
    not_eligible: tuple[Ruled, ...]
    """Why the other asks do not suit."""
    joules: float | None
    """The energy it would take, where every device says what it draws."""
    request: Mapping[str, Any] = field(repr=False)
    """What was asked, as the gateway wants it."""
    json: Mapping[str, Any] = field(repr=False)
    """The plan as the gateway told it."""

    def __str__(self) -> str:
        many = "part" if len(self.parts) == 1 else "parts"
        lines = [
            f"plan {self.hash[:8]}: {len(self.parts)} {many}, {self.cost}, {_time(self.seconds)}; "
            f"{self.asks_eligible} of {self.asks_seen} asks suit",
            *_aligned(_PARTS, self.parts),
            *(f"part {part.number}: {part.why}" for part in self.parts),
            f"upload {_time(self.upload)}, wait {_time(self.wait)}, compute {_time(self.compute)}",
        ]
        if self.escrow is not None:
            lines.append(f"holds up to {self.escrow} until settled; what is not used returns")
        lines += [f"{one.asks} asks do not suit: {_causes(one)}" for one in self.not_eligible]
        if self.alternatives:
            lines += ["it can be had for", *_aligned(_ALTERNATIVES, self.alternatives)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rest = [
            f"upload {_time(self.upload)}, wait {_time(self.wait)}, compute {_time(self.compute)}",
            *(f"{one.asks} asks do not suit: {_causes(one)}" for one in self.not_eligible),
        ]
        if self.escrow is not None:
            rest.insert(0, f"Holds up to {self.escrow} until settled; what is not used returns.")
        title = f"<b>{self.cost}, {_time(self.seconds)}</b> · plan {escape(self.hash[:8])}"
        paragraphs = "".join(f"<p>{escape(line)}</p>" for line in rest)
        others = _html(_ALTERNATIVES, self.alternatives) if self.alternatives else ""
        told = f"<details><summary>Alternatives</summary>{others}</details>" if others else ""
        return f"<div><p>{title}</p>{_html(_PARTS, self.parts)}{paragraphs}{told}</div>"


_PARTS: dict[str, Callable[[Part], str]] = {
    "part": lambda part: str(part.number),
    "provider": lambda part: f"{part.provider_name} {part.provider[:8]}",
    "device": lambda part: part.device,
    "time": lambda part: _time(part.busy),
    "credits": lambda part: f"{float(part.cost):.6f}",
}
_ALTERNATIVES: dict[str, Callable[[Alternative], str]] = {
    "time": lambda other: _time(other.seconds),
    "credits": lambda other: f"{float(other.cost):.6f}",
    "on": lambda other: ", ".join(other.devices),
}


def _cells(columns: Mapping[str, Callable[[Any], str]], rows: Sequence[object]) -> list[list[str]]:
    return [[tell(row) for tell in columns.values()] for row in rows]


def _aligned(columns: Mapping[str, Callable[[Any], str]], rows: Sequence[object]) -> list[str]:
    cells = [list(columns), *_cells(columns, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        ("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]


def _html(columns: Mapping[str, Callable[[Any], str]], rows: Sequence[object]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in _cells(columns, rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _causes(ruled: Ruled) -> str:
    return f"{ruled.cause} ({'; '.join(ruled.examples)})"


def _time(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds == 0:
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def plan_of(told: Mapping[str, Any], request: Mapping[str, Any]) -> Plan:
    """A plan as the gateway tells it."""
    times = told["times"]
    escrow = told.get("escrow_micro_credits")
    return Plan(
        hash=str(told["hash"]),
        cost=Credits(told["micro_credits"]),
        escrow=None if escrow is None else Credits(escrow),
        seconds=float(times["all_seconds"]),
        upload=float(times["upload_seconds"]),
        wait=float(times["wait_seconds"]),
        compute=float(times["compute_seconds"]),
        parts=tuple(map(_part, told["parts"])),
        alternatives=tuple(map(_alternative, told.get("alternatives", ()))),
        asks_seen=int(told["asks_seen"]),
        asks_eligible=int(told["asks_eligible"]),
        not_eligible=tuple(
            Ruled(cause=one["cause"], asks=one["asks"], examples=tuple(one["examples"]))
            for one in told.get("not_eligible", ())
        ),
        joules=cast("float | None", told.get("joules")),
        request=request,
        json=told,
    )


def _part(told: Mapping[str, Any]) -> Part:
    return Part(
        number=int(told["part"]),
        device=str(told["device"]),
        emulated=bool(told["emulated"]),
        provider=str(told["provider"]),
        provider_name=str(told["provider_name"]),
        operators=int(told["nodes"]),
        start=float(told["start_seconds"]),
        busy=float(told["busy_seconds"]),
        cost=Credits(told["micro_credits"]),
        critical=bool(told["critical"]),
        why=str(told["why"]),
    )


def _alternative(told: Mapping[str, Any]) -> Alternative:
    return Alternative(
        devices=tuple(told["devices"]),
        seconds=float(told["makespan_seconds"]),
        cost=Credits(told["micro_credits"]),
        against_plan=str(told["against_plan"]),
    )
