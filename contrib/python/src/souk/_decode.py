"""From JSON to the types of `_models`: what does not fit is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from ._credits import Credits
from ._models import WIRE_NAMES
from ._table import Table, plain
from .errors import Unexpected

Kind = TypeVar("Kind")

# RFC 3339. `datetime.fromisoformat` takes neither `Z` nor `.05` before Python 3.11.
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|\+00:00)")


def decode(kind: type[Kind], value: object) -> Kind:
    """A value of a model, of a plain type, or of a container of them."""
    return cast("Kind", _value(kind, value, kind.__name__))


def decode_rows(kind: type[Kind], value: object) -> Table[Kind]:
    """A table of a model."""
    if not isinstance(value, list):
        raise _unlike(kind.__name__, "a list", value)
    return Table(kind, [decode(kind, one) for one in cast("list[object]", value)])


@lru_cache(maxsize=256)
def _hints(kind: type[object]) -> list[tuple[str, object]]:
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name]) for field in fields(cast("Any", kind))]


def _value(kind: object, value: object, where: str) -> object:
    known = plain(kind)
    if value is None and known is not kind:
        return None
    origin = get_origin(known)
    if origin is Table:
        return decode_rows(get_args(known)[0], value)
    if origin is tuple:
        if not isinstance(value, list):
            raise _unlike(where, "a list", value)
        inner = get_args(known)[0]
        return tuple(_value(inner, one, where) for one in cast("list[object]", value))
    if known is Credits:
        return Credits(cast("int", _value(int, value, where)))
    if known is datetime:
        return time_of(value, where)
    if isinstance(known, type) and is_dataclass(known):
        return _model(cast("type[object]", known), value, where)
    return _plain(cast("object", known), value, where)


def _model(kind: type[object], value: object, where: str) -> object:
    if not isinstance(value, Mapping):
        raise _unlike(where, "an object", value)
    told = cast("Mapping[str, object]", value)
    found: dict[str, object] = {}
    for name, hint in _hints(kind):
        key = name if name in told else WIRE_NAMES.get(name, name)
        found[name] = _value(hint, told.get(key), f"{where}.{key}")
    return kind(**found)


def _plain(kind: object, value: object, where: str) -> object:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, bool):
        raise _unlike(where, "a whole number", value)
    if kind in (int, float, str, bool) and not isinstance(value, cast("type[object]", kind)):
        raise _unlike(where, cast("type[object]", kind).__name__, value)
    return value


def _unlike(where: str, wanted: str, value: object) -> Unexpected:
    return Unexpected(
        f"the gateway answered {value!r:.60} for {where}, where {wanted} belongs",
        "are the gateway and this package of the same version?",
    )


def time_of(value: object, where: str = "a time") -> datetime:
    """A time of RFC 3339 in UTC."""
    found = _TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise Unexpected(
            f"the gateway answered {value!r:.60} for {where}, where a time belongs",
            "are the gateway and this package of the same version?",
        )
    whole = datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return whole + timedelta(microseconds=int((found[2] or "").ljust(6, "0")[:6]))
