"""Rows that are also columns: what the market says, for loops and for arithmetic."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from functools import reduce
from itertools import accumulate
from shutil import get_terminal_size
from typing import (
    Any,
    Generic,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from ._credits import Credits

Row = TypeVar("Row")

_ROWS_SHOWN = 20


class Table(Sequence[Row], Generic[Row]):
    """Rows of one kind. ``table[0]`` is a row, ``table["price"]`` a column as an array.

    Columns are named as the fields of a row; of a field that has fields itself each is one:
    ``table["ask_price"]``. Amounts are credits as floats, times ``datetime64``; what is not known
    is NaN, NaT or an empty string. ``pandas.DataFrame(table.columns())`` takes all at once.
    """

    def __init__(self, kind: type[Row], rows: Sequence[Row]) -> None:
        self._kind = kind
        self._rows = tuple(rows)
        self._columns = dict(_columns(kind))

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Table[Row]: ...
    @overload
    def __getitem__(self, at: str) -> NDArray[Any]: ...
    def __getitem__(self, at: int | slice | str) -> Row | Table[Row] | NDArray[Any]:
        if isinstance(at, str):
            return self._column(at)
        if isinstance(at, slice):
            return Table(self._kind, self._rows[at])
        return self._rows[at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        theirs = cast("Table[object]", other)
        return self._kind is theirs._kind and self._rows == theirs._rows

    def __hash__(self) -> int:
        return hash((self._kind, self._rows))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def columns(self) -> Mapping[str, NDArray[Any]]:
        """All columns by name."""
        return {name: self._column(name) for name in self._columns}

    def _column(self, name: str) -> NDArray[Any]:
        try:
            path, kind = self._columns[name]
        except KeyError:
            known = ", ".join(self._columns)
            raise KeyError(f"there is no column {name}; there are {known}") from None
        values = [reduce(_field, path, row) for row in self._rows]
        return _array(values, kind)

    def _texts(self) -> tuple[list[str], list[list[str]]]:
        shown = [
            [_text(reduce(_field, path, row)) for path, _ in self._columns.values()]
            for row in self._rows[:_ROWS_SHOWN]
        ]
        # Columns in which nothing stands say nothing.
        kept = [n for n, _ in enumerate(self._columns) if any(row[n] for row in shown)]
        names = list(self._columns)
        return [names[n] for n in kept], [[row[n] for n in kept] for row in shown]

    def __repr__(self) -> str:
        names, rows = self._texts()
        if not rows:
            return f"no {self._kind.__name__.lower()}"
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        fits = _fitting(widths, get_terminal_size((100, 0)).columns)
        lines = [
            "  ".join(map(str.ljust, row[:fits], widths[:fits])).rstrip() for row in [names, *rows]
        ]
        hidden = [f"columns beside: {', '.join(names[fits:])}"] if names[fits:] else []
        return "\n".join([*lines, *self._rest(), *hidden])

    def _repr_html_(self) -> str:
        from html import escape

        names, rows = self._texts()
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows
        )
        rest = "".join(f"<p>{escape(line)}</p>" for line in self._rest())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"

    def _rest(self) -> list[str]:
        more = len(self._rows) - _ROWS_SHOWN
        return [f"and {more} more"] if more > 0 else []


def _fitting(widths: Sequence[int], room: int) -> int:
    """How many columns of these widths have room, at least one."""
    ends = accumulate(width + 2 for width in widths)
    return max(1, sum(end - 2 <= room for end in ends))


def _columns(
    kind: object, before: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[tuple[str, ...], object]]]:
    """Name, path and type of each column of a kind of row."""
    hints = get_type_hints(kind)
    for field in fields(cast("Any", kind)):
        path = (*before, field.name)
        inner = plain(hints[field.name])
        if inner is not Credits and is_dataclass(inner):
            yield from _columns(inner, path)
        else:
            yield "_".join(path), (path, inner)


def plain(hint: object) -> object:
    """A type without `| None`."""
    if get_origin(hint) in (Union, types.UnionType):
        known = [one for one in get_args(hint) if one is not type(None)]
        return known[0] if len(known) == 1 else object
    return hint


def _field(value: object, name: str) -> object:
    return None if value is None else getattr(value, name)


def _array(values: list[Any], kind: object) -> NDArray[Any]:
    is_whole = all(value is not None for value in values)
    if kind is Credits or kind is float or (kind is int and not is_whole):
        return np.array([np.nan if value is None else float(value) for value in values])
    if kind is int:
        return np.array(values, dtype=np.int64)
    if kind is bool and is_whole:
        return np.array(values, dtype=np.bool_)
    if kind is datetime:
        return np.array([_moment(value) for value in values], dtype="datetime64[ms]")
    if kind is str:
        return np.array(["" if value is None else value for value in values], dtype=np.str_)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _moment(value: datetime | None) -> str:
    if value is None:
        return "NaT"
    return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat()


def _text(value: object) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, Credits):
        return f"{float(value):.6f}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    if isinstance(value, tuple):
        return ", ".join(map(_text, cast("tuple[object, ...]", value)))
    text = str(value)
    is_hash = len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)
    return text[:8] if is_hash else text
