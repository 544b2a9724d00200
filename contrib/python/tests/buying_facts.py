"""The whole way, as a buyer goes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from samples import Digits, identity, zipped

import souk


def the_whole_way(net: souk.Testnet, digits: Digits) -> None:
    before = net.account()
    plan = net.plan(digits.model, {"images": digits.images}, budget=5)
    assert net.account() == before, "a plan moves no money"
    job = net.submit(plan)
    events = list(job.events())
    kinds = [type(event) for event in events]
    assert kinds[0] is souk.Leased
    assert kinds[-1] is souk.Ended
    assert {souk.Ready, souk.Running, souk.Finished, souk.Returned, souk.Signed} <= set(kinds)
    logits = job.result()["logits"]
    assert (logits.argmax(1) == digits.labels).mean() > 0.95
    assert job.receipts
    assert all(receipt.verify() for receipt in job.receipts)
    assert job.cost == sum((receipt.paid for receipt in job.receipts), start=souk.Credits(0))
    assert net.account().available == before.available - job.cost
    assert net.job(job.id).outputs == job.outputs


def a_plan_says_itself_in_words_and_in_a_notebook(net: souk.Testnet, digits: Digits) -> None:
    plan = net.plan(digits.model, {"images": digits.images}, real=True)
    text = str(plan)
    for said in (str(plan.cost), plan.parts[0].device, "emulated", "holds up to", plan.hash[:8]):
        assert said in text
    html = plan._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html.count("<tr>") >= 2
    assert plan.seconds > 0
    assert not any(part.emulated for part in plan.parts)
    assert [ruled.cause for ruled in plan.not_eligible] == ["emulated"]


def a_model_is_a_path_bytes_or_a_message(net: souk.Testnet, digits: Digits) -> None:
    inputs = {"images": digits.images[:4]}
    data = digits.model.read_bytes()
    message = onnx.ModelProto.FromString(data)
    models = [digits.model, str(digits.model), data, bytearray(data), message]
    # A message may be written otherwise, and its plan is then another; the answer is not.
    answers = [net.run(model, inputs)["logits"] for model in models]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


def a_list_becomes_f32_or_i64(net: souk.Testnet) -> None:
    y = net.run(identity(TensorProto.FLOAT, ["n"]), {"x": [0.5, 1.5]})["y"]
    assert y.dtype == np.float32
    assert y.tolist() == [0.5, 1.5]
    y = net.run(identity(TensorProto.INT64, ["n"]), {"x": [1, 2, 3]})["y"]
    assert y.dtype == np.int64
    assert y.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "name", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool", "bfloat16"]
)
def each_element_type_comes_back_as_it_went(net: souk.Testnet, name: str) -> None:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    dtype = np.dtype(name)
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    x: Any = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    y = net.run(identity(element, [2, 3]), {"x": x})["y"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x)


def an_array_need_not_lie_as_the_wire_wants_it(net: souk.Testnet) -> None:
    x = np.array([[1, 2], [3, 4], [5, 6]], dtype=">f4", order="F")[::2]
    y = net.run(identity(TensorProto.FLOAT, ["n", "m"]), {"x": x})["y"]
    np.testing.assert_array_equal(y, x)


def an_answer_may_be_written_to(net: souk.Testnet) -> None:
    y = net.run(identity(TensorProto.FLOAT, ["n"]), {"x": [1.0]})["y"]
    y += 1
    assert y.tolist() == [2.0]


def the_answers_of_a_stream_come_in_order(net: souk.Testnet) -> None:
    model = identity(TensorProto.INT64, ["n"])
    batches = ({"x": [number]} for number in range(6))
    answers = [answer["y"].tolist() for answer in net.stream(model, batches, ahead=3)]
    assert answers == [[number] for number in range(6)]


def a_stream_that_is_left_ends_what_is_under_way(net: souk.Testnet) -> None:
    model = identity(TensorProto.INT64, ["n"])
    stream = net.stream(model, ({"x": [number]} for number in range(100)), ahead=3)
    next(stream)
    stream.close()
    assert net.status().jobs_running == 0


def a_map_cuts_and_joins(net: souk.Testnet, digits: Digits) -> None:
    whole = net.run(digits.model, {"images": digits.images})
    parts = net.map(digits.model, {"images": digits.images}, batch=100)
    np.testing.assert_allclose(parts["logits"], whole["logits"], atol=1e-5)
    assert parts.cost >= whole.cost - whole.cost
    with pytest.raises(souk.InputRefused, match="equally many rows"):
        net.map(digits.model, {"images": digits.images, "more": [1]}, batch=10)


def the_same_key_is_the_same_job(net: souk.Testnet, digits: Digits) -> None:
    inputs = {"images": digits.images[:1]}
    first = net.submit(digits.model, inputs, key="the-same")
    again = net.submit(digits.model, inputs, key="the-same")
    assert first.id == again.id
    assert again.result().job == first.id


def what_is_on_offer_are_rows_and_columns(net: souk.Testnet, digits: Digits) -> None:
    net.run(digits.model, {"images": digits.images[:1]})
    asks = net.market.asks()
    prices = asks["price"]
    assert prices.dtype == np.float64
    assert prices.tolist() == [float(ask.price) for ask in asks]
    assert (np.diff(prices) >= 0).all(), "the cheapest first"
    assert len(net.market.asks(most=2)) == 2
    assert set(net.market.asks(real=True)["emulated"]) == {False}
    assert set(asks["throughput_f32"] > 0) == {True}
    traded = [one for one in net.market.classes() if one.last is not None]
    assert traded
    name = traded[0].class_name
    candles = net.market.candles(name, step=60)
    assert candles["start"].dtype.kind == "M"
    assert (candles["high"] >= candles["low"]).all()
    assert len(net.market.trades(name)) > 0
    depth = net.market.depth(name, levels=1)
    assert len(depth.asks) <= 1
    assert net.market.totals().balanced


def what_an_account_paid_stands_in_its_statement(net: souk.Testnet, digits: Digits) -> None:
    cost = net.run(digits.model, {"images": digits.images[:2]}).cost
    last = net.statement(1)[0]
    assert last.after.available - last.before.available > souk.Credits(0)
    assert net.account().available == last.after.available
    jobs = net.jobs(1)
    assert jobs[0].state == "done"
    assert jobs[0].paid == cost


def what_a_job_did_is_kept(net: souk.Testnet, digits: Digits) -> None:
    job = net.submit(digits.model, {"images": digits.images[:2]}, min_providers=2)
    job.result()
    assert len(job.leases) == 2
    assert len(job.plan()["parts"]) == 2
    assert any(span["kind"] == "compute" for span in job.timeline())
    assert job.trace()
    again = list(net.job(job.id).events())
    assert isinstance(again[0], souk.Leased)
    assert isinstance(again[-1], souk.Ended)


def a_follower_is_told_of_each_job(net: souk.Testnet, digits: Digits) -> None:
    follow = net.follow("jobs", "account", "market")
    seen: set[str] = set()
    job: souk.Job | None = None
    for update in follow:
        seen.add(update.topic)
        if job is None and {"account", "market"} <= seen:
            job = net.submit(digits.model, {"images": digits.images[:1]})
        what = update.what
        if job and isinstance(what, souk.JobState) and (what.id, what.state) == (job.id, "done"):
            break
    follow.close()
    assert seen == {"jobs", "account", "market"}


def who_is_there_is_told(net: souk.Testnet) -> None:
    assert len(net.validators()) == 3
    assert net.status().validators_answering == 3
    providers = net.providers()
    assert len(providers) == 4
    detail = net.provider(providers[0].account)
    assert detail.account.name == providers[0].name
    assert len(detail.asks) >= 1


def a_receipt_that_was_changed_does_not_hold(net: souk.Testnet, digits: Digits) -> None:
    job = net.submit(digits.model, {"images": digits.images[:1]})
    job.result()
    told = job.receipts[0].json
    forged = {**told, "body": {**told["body"], "amount": told["body"]["amount"] + 1}}
    transport = net._transport  # pyright: ignore[reportPrivateUsage]
    receipt = souk.Receipt(transport, forged)
    assert not receipt.verify()
    with pytest.raises(souk.VerificationFailed, match="does not hold"):
        receipt.check()
    job.receipts[0].check()


def texts_go_in_and_come_out(net: souk.Testnet) -> None:
    model = identity(TensorProto.STRING, ["n"])
    for given in (["Bonn", "Lima"], np.array(["Bonn", "Lima"], dtype=object)):
        answer = net.run(model, {"x": given}, budget=1)
        assert answer["y"].tolist() == ["Bonn", "Lima"]
    with pytest.raises(souk.InputRefused, match="x takes texts, but numbers were given"):
        net.plan(model, {"x": [1, 2]})


def maps_come_as_dictionaries(net: souk.Testnet) -> None:
    scores = [[0.25, 0.75], [1.0, 0.0]]
    answer = net.run(zipped(["no", "yes"]), {"x": scores}, budget=1)
    assert answer["y"].tolist() == [{"no": 0.25, "yes": 0.75}, {"no": 1.0, "yes": 0.0}]
