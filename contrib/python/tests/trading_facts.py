"""Orders by hand, leases, and what others see of the market."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from samples import Digits

import souk
from souk import Credits


@pytest.fixture
def real_class(net: souk.Testnet) -> Iterator[str]:
    """The class of the device that is really there; orders that are left are cancelled."""
    yield str(net.market.asks(real=True)[0].class_name)
    for order in net.orders.list():
        net.orders.cancel(order.order)


def a_bid_below_all_asks_rests_and_is_cancelled(net: souk.Testnet, real_class: str) -> None:
    before = net.account()
    placed = net.orders.bid(real_class, price=0.001, units=2, duration=10, rest=60)
    assert placed.resting == 2
    assert len(placed.trades) == 0
    assert [order.order for order in net.orders.list()] == [placed.order]
    order = net.orders.show(placed.order)
    assert (order.side, order.units, order.price) == ("bid", 2, Credits.of(0.001))
    assert order.held >= Credits.of("0.02")
    assert net.account().available == before.available - order.held
    fewer = net.orders.amend(placed.order, units=1)
    assert net.orders.show(fewer.order).units == 1
    released = net.orders.cancel(fewer.order).released
    assert released > Credits(0)
    assert net.account().available == before.available
    with pytest.raises(souk.SoukError):
        net.orders.show(fewer.order)


def one_key_is_one_order(net: souk.Testnet, real_class: str) -> None:
    first = net.orders.bid(real_class, price=0.001, key="one-order")
    again = net.orders.bid(real_class, price=0.001, key="one-order")
    assert first.order == again.order
    with pytest.raises(souk.KeyReused):
        net.orders.bid(real_class, price=0.002, key="one-order")


def a_bid_that_meets_an_ask_is_a_lease_that_can_be_ended(
    net: souk.Testnet, real_class: str
) -> None:
    price = float(net.market.asks(real=True)[0].price)
    placed = net.orders.bid(real_class, price=price, duration=30)
    (trade,) = placed.trades
    assert trade.lease in [lease.lease for lease in net.leases.list()]
    before = net.leases.show(trade.lease)
    longer = net.leases.extend(trade.lease, by=10)
    assert (longer.ends_at - before.ends_at).total_seconds() == 10
    net.leases.end(trade.lease)
    assert net.leases.show(trade.lease).state in ("ending", "due", "closed")


def what_cannot_be_bid_is_refused_with_its_cause(net: souk.Testnet, real_class: str) -> None:
    with pytest.raises(souk.SoukError) as raised:
        net.orders.bid("no-such-class", price=1)
    assert raised.value.hint
    with pytest.raises(souk.InputRefused, match="price"):
        net.orders.bid(real_class, price=-1)
    with pytest.raises(souk.SoukError):
        net.orders.cancel(999_999)
    with pytest.raises(souk.SoukError):
        net.leases.end(999_999)


def what_a_job_was_made_of_is_told(net: souk.Testnet, digits: Digits) -> None:
    job = net.submit(digits.model, {"images": digits.images[:4]}, min_providers=2)
    job.result()
    graph = job.graph()
    assert graph.parts["part"].tolist() == [1, 2]
    assert graph.edges is not None
    assert (1, 2) in [(edge.source, edge.target) for edge in graph.edges]
    assert job.explain()
    closed = {lease.lease for lease in net.leases.closed(10)}
    assert {lease.lease for lease in job.leases} <= closed


def who_earned_what_is_told(net: souk.Testnet, digits: Digits) -> None:
    job = net.submit(digits.model, {"images": digits.images}, real=True)
    job.result()
    earned = net.earnings(job.receipts[0].provider, step="1h")
    assert earned.step == 3600
    assert earned.total.paid >= job.cost
    assert sum((step.paid for step in earned.steps), start=Credits(0)) == earned.total.paid


def the_network_and_its_devices_are_told(net: souk.Testnet) -> None:
    map_ = net.network()
    roles = map_.nodes["role"].tolist()
    assert roles.count("validator") == 3
    assert roles.count("provider") == 4
    devices = net.devices(real=True)
    assert set(devices["emulated"]) == {False}
    assert (devices["price_min"] > 0).all()
    assert len(net.devices()) > len(devices)


def a_session_of_a_language_model_answers_and_says_what_it_paid(net: souk.Testnet) -> None:
    assert "bundled" in net.sessions.models()
    with pytest.raises(souk.NotFound):
        net.sessions.open("another")
    with net.sessions.open("bundled", budget=20) as session:
        assert "held for a lease" in session.chat("What is escrow?", temperature=0)
        assert session.complete("A market is", max_tokens=4)
        assert [one.id for one in net.sessions.list()] == [session.id]
        with pytest.raises(souk.InputRefused):
            session.chat("What is escrow?", nonsense=1)
        assert session.facts().answered == 2
    assert len(net.sessions.list()) == 0
    with net.sessions.open("bundled", budget=0.000001) as poor, pytest.raises(souk.BudgetExceeded):
        poor.chat("What is escrow?")
