"""The client for `await`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import numpy as np
import pytest
from onnx import TensorProto
from samples import Digits, identity

import souk


def the_whole_way_by_await(net: souk.Testnet, digits: Digits) -> None:
    async def buy() -> None:
        async with souk.AsyncClient(net.url, net.token) as client:
            inputs = {"images": digits.images}
            job = await client.submit(await client.plan(digits.model, inputs))
            kinds = [type(event) async for event in job.events()]
            assert kinds[-1] is souk.Ended
            logits = (await job.result())["logits"]
            assert (logits.argmax(1) == digits.labels).mean() > 0.95
            assert all([await receipt.verify() for receipt in job.receipts])
            assert len(await client.market.asks()) > 0

    asyncio.run(buy())


def a_stream_takes_batches_of_either_kind(net: souk.Testnet) -> None:
    async def batches() -> AsyncGenerator[dict[str, list[int]]]:
        for number in range(4):
            yield {"x": [number]}

    async def collect() -> list[list[int]]:
        model = identity(TensorProto.INT64, ["n"])
        async with souk.AsyncClient(net.url, net.token) as client:
            there = [one["y"].tolist() async for one in client.stream(model, batches())]
            here = [{"x": [number]} for number in range(4)]
            joined = await client.map(model, {"x": [0, 1, 2, 3]}, batch=1)
            assert joined["y"].tolist() == [0, 1, 2, 3]
            assert there == [one["y"].tolist() async for one in client.stream(model, here)]
            return there

    assert asyncio.run(collect()) == [[0], [1], [2], [3]]


def one_key_asked_twice_at_once_is_one_job(net: souk.Testnet, digits: Digits) -> None:
    async def both() -> set[str]:
        async with souk.AsyncClient(net.url, net.token) as client:
            inputs = {"images": digits.images[:1]}
            asked = [client.submit(digits.model, inputs, key="at-once") for _ in range(4)]
            return {job.id for job in await asyncio.gather(*asked)}

    assert len(asyncio.run(both())) == 1


def a_large_answer_lets_others_go_on(net: souk.Testnet) -> None:
    async def fetch() -> float:
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - began)

        async with souk.AsyncClient(net.url, net.token) as client:
            x = np.ones(8_000_000, np.float32)
            job = await client.submit(identity(TensorProto.FLOAT, ["n"]), {"x": x})
            await job.wait()
            ticking = asyncio.create_task(tick())
            await job.result()
            ticking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ticking
        return longest

    assert asyncio.run(fetch()) < 1
