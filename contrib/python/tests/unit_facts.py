"""What needs no market."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import souk
from souk import Credits, Table, Unexpected
from souk._decode import (
    decode,  # pyright: ignore[reportPrivateUsage]
    time_of,  # pyright: ignore[reportPrivateUsage]
)
from souk._events import event_of  # pyright: ignore[reportPrivateUsage]
from souk._find import find  # pyright: ignore[reportPrivateUsage]
from souk._updates import Message, Parser  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True)
class Inner:
    price: Credits


@dataclass(frozen=True)
class Row:
    name: str
    at: datetime | None
    best: Inner | None
    count: int | None


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def an_amount_is_exact() -> None:
    assert Credits.of(0.1) + Credits.of("0.2") == Credits.of(Decimal("0.3"))
    assert str(Credits.of(0.5)) == "0.500000 credits"
    assert Credits.of(1 / 3).micro == 333_333
    assert float(Credits(1)) == 1e-6
    assert Credits(2) - Credits(2) == Credits(0)
    assert not Credits(0)


def a_column_is_an_array_with_gaps_where_nothing_is_known() -> None:
    table = Table(Row, [Row("a", NOW, Inner(Credits(5)), 1), Row("b", None, None, None)])
    assert list(table.columns()) == ["name", "at", "best_price", "count"]
    assert table["name"].tolist() == ["a", "b"]
    assert table["best_price"][0] == 5e-6
    assert np.isnan(table["best_price"][1])
    assert np.isnan(table["count"][1])
    assert np.isnat(table["at"][1])
    assert table["at"][0] == np.datetime64("2026-01-02T03:04:05")
    with pytest.raises(KeyError, match="there are name, at"):
        table["nothing"]


def a_table_without_rows_still_has_columns() -> None:
    table = Table(Row, [])
    assert table["best_price"].dtype == np.float64
    assert repr(table) == "no row"
    assert table._repr_html_()  # pyright: ignore[reportPrivateUsage]


def a_table_is_cut_where_the_screen_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    lines = repr(Table(Row, [Row("a" * 10, NOW, None, 1)] * 25)).splitlines()
    assert len(lines) == 23
    assert max(map(len, lines[:21])) <= 30
    assert lines[-2] == "and 5 more"
    assert lines[-1].startswith("columns beside: ")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-02T03:04:05Z", NOW),
        ("2026-01-02T03:04:05.05Z", NOW + timedelta(milliseconds=50)),
        ("2026-01-02T03:04:05.123456789Z", NOW + timedelta(microseconds=123456)),
        ("2026-01-02T03:04:05+00:00", NOW),
    ],
)
def a_time_of_the_wire_is_a_time(text: str, time: datetime) -> None:
    assert time_of(text) == time


@pytest.mark.parametrize(
    "told",
    [
        "null",
        "[]",
        '"a"',
        "{}",
        '{"name": 1}',
        '{"name": "a", "at": "yesterday"}',
        '{"name": "a", "best": {"price": 1.5}}',
        '{"name": "a", "count": true}',
    ],
)
def what_the_gateway_must_not_say_is_refused_by_name(told: str) -> None:
    with pytest.raises(Unexpected, match="belongs"):
        decode(Row, json.loads(told))


def what_a_newer_gateway_says_beside_is_passed_over() -> None:
    told = '{"name": "a", "at": null, "best": {"price": 3, "new": 1}, "count": 2, "newer": []}'
    assert decode(Row, json.loads(told)) == Row("a", None, Inner(Credits(3)), 2)


def an_event_of_a_newer_gateway_is_told_as_it_came() -> None:
    when = {"number": 3, "at": "2026-01-02T03:04:05Z"}
    for facts in (
        {"event": "levitating", "height": 3},
        {"event": "levitating"},
        {"event": "leased", "leases": 7},
    ):
        event = event_of({**when, **facts})
        assert isinstance(event, souk.Happened)
        assert (event.number, event.at, event.name) == (3, NOW, facts["event"])
        assert {"event": event.name, **event.facts} == facts


def an_event_has_its_number_its_time_and_its_facts() -> None:
    lease = {"provider": "ab" * 32, "lease": 7, "escrow": 5}
    when = {"number": 0, "at": "2026-01-02T03:04:05Z"}
    event = event_of({**when, "event": "leased", "attempt": 0, "leases": [lease, lease]})
    assert isinstance(event, souk.Leased)
    assert (event.number, event.at, event.escrow) == (0, NOW, Credits(10))
    assert event.leases["lease"].tolist() == [7, 7]


def a_stream_may_be_cut_anywhere() -> None:
    text = (
        ': ping\n\nid: 7.1\nevent: jobs\ndata: {"a": "\u2028\x85é"}\n\n'
        "event: reset\ndata: {}\n\ndata: a\ndata: b\n\nid: 9\n\n"
    ).encode()
    whole = list(Parser().take(text))
    assert [message.topic for message in whole] == ["jobs", "reset", "message"]
    assert whole[0].id == "7.1"
    assert whole[0].data == '{"a": "\u2028\x85é"}'
    assert whole[2].data == "a\nb"
    random_ = random.Random(1)  # noqa: S311
    for _ in range(200):
        parser, rest = Parser(), text
        found: list[Message] = []
        while rest:
            cut = random_.randint(1, 9)
            found += parser.take(rest[:cut])
            rest = rest[cut:]
        assert found == whole


def what_opens_a_gateway_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOUK_URL", "SOUK_TOKEN", "SOUK_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(souk.Unauthorized, match="no token is known") as raised:
        souk.Client()
    assert "SOUK_TOKEN" in raised.value.hint
    folder = tmp_path / "souk-testnet" / "buyer"
    folder.mkdir(parents=True)
    (folder / "http-tokens.json").write_text('{"trade": "inside"}')
    assert find(None, None, None).token == "inside"  # noqa: S105
    assert find(None, None, None).url == "http://127.0.0.1:7800"
    monkeypatch.setenv("SOUK_TOKEN", "around")
    monkeypatch.setenv("SOUK_URL", "http://127.0.0.1:1")
    assert find(None, None, None).token == "around"  # noqa: S105
    assert find("http://127.0.0.1:2", "given", None).url == "http://127.0.0.1:2"
    assert "given" not in repr(find(None, "given", None)), "a token is not printed"
    monkeypatch.delenv("SOUK_TOKEN")
    (folder / "http-tokens.json").write_text("[]")
    with pytest.raises(souk.Unauthorized, match="holds none"):
        find(None, None, None)


def no_gateway_is_told_at_once() -> None:
    with souk.Client("http://127.0.0.1:9", "token") as client:
        with pytest.raises(souk.GatewayUnreachable) as raised:
            client.status()
        assert raised.value.retryable
        assert "souk serve" in raised.value.hint
    with pytest.raises(souk.GatewayUnreachable):
        souk.Client("nonsense", "token").status()
