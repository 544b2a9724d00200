"""What is on offer, what it costs and what it cost; orders by hand, and their leases."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from .._decode import decode, decode_rows
from .._models import (
    Amount,
    Ask,
    BidTerms,
    Cancelled,
    Candle,
    ClosedLease,
    Depth,
    Lease,
    MarketClass,
    Order,
    Placed,
    Totals,
    Trade,
)
from .._table import Table
from .._wire import limited, micro, quoted
from .transport import AsyncTransport

if TYPE_CHECKING:
    from typing_extensions import Unpack


_ORDERS = "/v1/market/orders"
_LEASES = "/v1/leases"


class AsyncMarket:
    """The books. Classes are named as `classes` names them, or by the beginning of that."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def classes(self) -> Table[MarketClass]:
        """Every class of device that was ever traded in or quoted."""
        return decode_rows(MarketClass, await self._transport.get("/v1/market/classes"))

    async def depth(self, class_name: str, *, levels: int | None = None) -> Depth:
        """What is asked and bid in a class, by price: the best first."""
        told = await self._transport.get(_path(class_name, "depth"), {"levels": levels})
        return decode(Depth, told)

    async def candles(self, class_name: str, *, step: int | None = None) -> Table[Candle]:
        """What a class cost within the last day, in steps of so many seconds, the oldest first."""
        told = await self._transport.get(_path(class_name, "candles"), {"step": step})
        return decode_rows(Candle, told["candles"])

    async def trades(self, class_name: str) -> Table[Trade]:
        """The last trades of a class, the newest first."""
        told = await self._transport.get(_path(class_name, "trades"))
        return decode_rows(Trade, told["trades"])

    async def asks(
        self,
        *,
        kind: str | None = None,
        device: str | None = None,
        real: bool | None = None,
        max_price: Amount | None = None,
        most: int | None = None,
    ) -> Table[Ask]:
        """What is on offer, the cheapest first: of a kind, with this in the device's name, only
        devices that are really there, up to a price, so many at most.
        """
        price = None if max_price is None else micro("max_price", max_price)
        given = {"kind": kind, "device": device, "real": real, "max_price": price}
        return await self._transport.table(Ask, "/v1/market/asks", most, given)

    async def totals(self) -> Totals:
        """The sums over all accounts."""
        return decode(Totals, await self._transport.get("/v1/market/totals"))


class AsyncOrders:
    """Orders of the account. Under the same `key` the same order is placed once."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def bid(
        self,
        class_name: str,
        price: Amount | None = None,
        units: int = 1,
        *,
        key: str | None = None,
        **terms: Unpack[BidTerms],
    ) -> Placed:
        """Bid for devices of a class, at most so much for a second of each; without a price, for
        whatever is asked within the `budget`. What finds no ask rests in the book.
        """
        body: dict[str, object] = {"side": "bid", "class": class_name, "units": units}
        if price is not None:
            body["price"] = micro("price", price)
        return await self._place({**body, **limited(terms)}, key)

    async def ask(self, lease: int, price: Amount, *, key: str | None = None) -> Placed:
        """Offer the rest of a lease that the account bought, at least so much for a second."""
        body: dict[str, object] = {"side": "ask", "lease": lease, "price": micro("price", price)}
        return await self._place(body, key)

    async def list(self, most: int | None = None) -> Table[Order]:
        """Those that rest in the books, the oldest first, so many at most."""
        return await self._transport.table(Order, _ORDERS, most)

    async def show(self, order: int) -> Order:
        """One that rests in a book."""
        return decode(Order, await self._transport.get(f"{_ORDERS}/{order}"))

    async def amend(
        self, order: int, *, price: Amount | None = None, units: int | None = None
    ) -> Placed:
        """Change one. With fewer units at the same price it keeps its place in line."""
        asked = {"price": None if price is None else micro("price", price), "units": units}
        body = {name: value for name, value in asked.items() if value is not None}
        told = await self._transport.ask("PATCH", f"{_ORDERS}/{order}", body=body)
        return decode(Placed, told.json())

    async def cancel(self, order: int) -> Cancelled:
        """Take one out of its book: what was held for it returns."""
        told = await self._transport.ask("DELETE", f"{_ORDERS}/{order}")
        return decode(Cancelled, told.json())

    async def _place(self, body: dict[str, object], key: str | None) -> Placed:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return decode(Placed, await self._transport.post(_ORDERS, body, headers))


class AsyncLeases:
    """Leases of the account, bought and sold."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self, most: int | None = None) -> Table[Lease]:
        """Those that are open, the oldest first, so many at most."""
        return await self._transport.table(Lease, _LEASES, most)

    async def closed(self, most: int | None = None) -> Table[ClosedLease]:
        """Those that closed, the newest first, so many at most."""
        return await self._transport.table(ClosedLease, f"{_LEASES}/closed", most)

    async def show(self, lease: int) -> Lease:
        """One, anybody's, as long as the market knows it."""
        return decode(Lease, await self._transport.get(f"{_LEASES}/{lease}"))

    async def end(self, lease: int) -> Lease:
        """End one that the account bought: what was used is paid, the rest returns."""
        return decode(Lease, await self._transport.post(f"{_LEASES}/{lease}/end", None))

    async def extend(self, lease: int, by: int) -> Lease:
        """Make one longer by so many seconds, at the same price."""
        return decode(Lease, await self._transport.post(f"{_LEASES}/{lease}/extend", {"by": by}))


def _path(class_name: str, what: str) -> str:
    return f"/v1/market/classes/{quoted(class_name)}/{what}"
