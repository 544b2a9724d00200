"""Each refusal of the gateway is an exception of its own, with what to do about it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from samples import Digits, identity

import souk
from souk import SoukError
from souk._contents import Content  # pyright: ignore[reportPrivateUsage]
from souk._find import Found  # pyright: ignore[reportPrivateUsage]
from souk._sync.transport import Transport  # pyright: ignore[reportPrivateUsage]

NOBODY = "0" * 64


def transport(net: souk.Testnet, token: str | None = None) -> Transport:
    """A way to ask what the client itself would not."""
    return Transport(Found(net.url, token or net.token), timeout=30, patience=0)


def tokens(net: souk.Testnet) -> dict[str, str]:
    return json.loads((net.folder / "buyer" / "http-tokens.json").read_text())


def digits_job(net: souk.Testnet, digits: Digits, **limits: Any) -> dict[str, Any]:
    """A job as the gateway takes it; its contents are there."""
    plan = net.plan(digits.model, {"images": digits.images[:1]})
    return {**plan.request, **limits}


def unknown_limit(net: souk.Testnet, digits: Digits) -> None:
    net.plan(digits.model, {"images": digits.images[:1]}, colour="red")  # type: ignore[call-arg]


def wrong_token(net: souk.Testnet, digits: Digits) -> None:
    del digits
    transport(net, NOBODY).get("/v1/status")


def reading_token(net: souk.Testnet, digits: Digits) -> None:
    del digits
    path = f"/v1/jobs/{NOBODY[:12]}"
    transport(net, tokens(net)["read"]).ask("DELETE", path)


def unknown_job(net: souk.Testnet, digits: Digits) -> None:
    del digits
    net.job("00ff00ff00ff")


def wrong_method(net: souk.Testnet, digits: Digits) -> None:
    del digits
    transport(net).ask("PATCH", "/v1/jobs")


def other_host(net: souk.Testnet, digits: Digits) -> None:
    del digits
    transport(net).ask("GET", "/v1/status", headers={"Host": "souk.example"})


def resumed_though_done(net: souk.Testnet, digits: Digits) -> None:
    job = net.submit(digits.model, {"images": digits.images[:1]})
    job.result()
    job.resume()


def moved_plan(net: souk.Testnet, digits: Digits) -> None:
    del net
    inputs = {"images": digits.images}
    # A market in which nothing ran yet: there the quickest device is not the cheapest.
    with souk.testnet() as fresh:
        cheap = fresh.plan(digits.model, inputs, prefer="cheapest")
        dear = fresh.plan(digits.model, inputs, prefer="fastest")
        asked = {"plan": cheap.hash, "job": dear.request, "slippage": 0}
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        transport(fresh).post("/v1/jobs", asked, headers)


def key_for_another(net: souk.Testnet, digits: Digits) -> None:
    key = uuid.uuid4().hex
    net.submit(digits.model, {"images": digits.images[:1]}, key=key).wait()
    net.submit(digits.model, {"images": digits.images[:2]}, key=key)


def too_long(net: souk.Testnet, digits: Digits) -> None:
    transport(net).post("/v1/plans", digits_job(net, digits, regions=["x" * 100] * 20_000))


def beyond_the_end(net: souk.Testnet, digits: Digits) -> None:
    name = digits_job(net, digits)["model"]
    range_ = {"Range": "bytes=99999999-"}
    transport(net).ask("GET", f"/v1/contents/{name}", headers=range_)


def wrong_element_type(net: souk.Testnet, digits: Digits) -> None:
    net.plan(digits.model, {"images": digits.images.astype(np.float64)})


def wrong_bytes(net: souk.Testnet, digits: Digits) -> None:
    del digits
    transport(net).bring(f"/v1/contents/{NOBODY}", Content(b"others"))


def too_many_providers(net: souk.Testnet, digits: Digits) -> None:
    net.plan(digits.model, {"images": digits.images}, min_providers=9, max_providers=9)


def unknown_device(net: souk.Testnet, digits: Digits) -> None:
    net.plan(digits.model, {"images": digits.images}, devices=["tpu"])


def small_budget(net: souk.Testnet, digits: Digits) -> None:
    net.plan(digits.model, {"images": digits.images}, budget=0.000001)


def short_deadline(net: souk.Testnet, digits: Digits) -> None:
    net.plan(digits.model, {"images": digits.images}, deadline=1e-6)


def many_streams(net: souk.Testnet, digits: Digits) -> None:
    del digits
    # 32 streams are taken; each client has connections of its own, and none waits for another.
    with ExitStack() as open_:
        for _ in range(33):
            open_.enter_context(transport(net).stream("market", None))


CASES: list[tuple[Callable[[souk.Testnet, Digits], None], type[SoukError], bool]] = [
    (unknown_limit, souk.Malformed, False),
    (wrong_token, souk.Unauthorized, False),
    (reading_token, souk.Forbidden, False),
    (unknown_job, souk.NotFound, False),
    (wrong_method, souk.MethodNotAllowed, False),
    (other_host, souk.Misdirected, False),
    (resumed_though_done, souk.WrongState, False),
    (moved_plan, souk.PlanMoved, False),
    (key_for_another, souk.KeyReused, False),
    (too_long, souk.TooLarge, False),
    (beyond_the_end, souk.RangeNotThere, False),
    (wrong_element_type, souk.InputRefused, False),
    (wrong_bytes, souk.VerificationFailed, False),
    (too_many_providers, souk.NoPlan, False),
    (unknown_device, souk.NoneEligible, True),
    (small_budget, souk.BudgetExceeded, False),
    (short_deadline, souk.DeadlineExceeded, False),
    (many_streams, souk.TooMany, True),
]


@pytest.mark.parametrize(
    ("ask", "kind", "retryable"), CASES, ids=[ask.__name__ for ask, *_ in CASES]
)
def each_code_is_an_exception(
    net: souk.Testnet,
    digits: Digits,
    ask: Callable[[souk.Testnet, Digits], None],
    kind: type[SoukError],
    retryable: bool,
) -> None:
    with pytest.raises(SoukError) as raised:
        ask(net, digits)
    assert type(raised.value) is kind
    assert raised.value.code == kind.code
    assert raised.value.retryable == retryable
    assert raised.value.detail
    assert raised.value.hint, "it says what to do"
    assert raised.value.hint in str(raised.value)


def each_code_of_the_documents_has_an_exception() -> None:
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
    table = page.split("| status | `code` |", 1)[1].split("\n\n", 1)[0]
    codes = set(re.findall(r"`([a-z_]+)`", table)) - {"code"}
    assert len(codes) > 20
    assert codes <= SoukError.of_code.keys()


def no_ask_that_suits_is_counted_by_cause(net: souk.Testnet, digits: Digits) -> None:
    with pytest.raises(souk.NoneEligible) as raised:
        net.plan(digits.model, {"images": digits.images}, devices=["cpu"], max_price=0.000001)
    assert raised.value.counts == {"device": 2, "price": 2}


def what_a_budget_needs_leads_to_one_that_is_enough(net: souk.Testnet, digits: Digits) -> None:
    inputs = {"images": digits.images}
    budget = souk.Credits(0)
    # What it costs, what another provider would, what a lease holds: each is told when it is met.
    for _ in range(4):
        try:
            assert net.plan(digits.model, inputs, budget=budget).cost <= budget
            break
        except souk.BudgetExceeded as error:
            assert error.needed is not None
            assert error.needed > budget
            budget = error.needed
    else:
        pytest.fail("no budget that was named is enough")


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": ["a", "b"]}, "x takes numbers, but texts were given"),
        ({"x": [[1, 2], [3]]}, "no array|a tensor is of numbers"),
        ({"x": [None]}, "a tensor is of numbers"),
        ({"z": [1.0]}, "z"),
        ({}, "missing"),
        (np.zeros(1, np.float32), "a mapping from names to arrays"),
        ({"x": np.zeros((2, 2), np.float32)}, "x"),
    ],
)
def what_is_no_input_is_refused_with_its_cause(net: souk.Testnet, inputs: Any, said: str) -> None:
    with pytest.raises(souk.InputRefused, match=said) as raised:
        net.plan(identity(TensorProto.FLOAT, ["n"]), inputs)
    assert raised.value.hint


@pytest.mark.parametrize("model", [b"", b"garbage" * 99, "no-such-file.onnx", 7, Path("/")])
def what_is_no_model_is_refused_with_its_cause(net: souk.Testnet, model: Any) -> None:
    with pytest.raises(souk.InputRefused):
        net.plan(model, {"x": [1.0]})


@pytest.mark.parametrize("budget", [-1, "much", float("nan"), float("inf"), 1e30, [1]])
def what_is_no_amount_is_refused(net: souk.Testnet, digits: Digits, budget: Any) -> None:
    with pytest.raises(souk.InputRefused, match="budget"):
        net.plan(digits.model, {"images": digits.images}, budget=budget)


def a_list_that_is_given_as_a_word_is_refused(net: souk.Testnet, digits: Digits) -> None:
    with pytest.raises(souk.InputRefused, match="devices is a list"):
        net.plan(digits.model, {"images": digits.images}, devices="cpu")
