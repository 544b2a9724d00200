"""A job: how it stands, what happens to it, what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Any, cast

from numpy.typing import NDArray

from .. import _tensors
from .._batches import Outputs
from .._credits import Credits
from .._decode import decode
from .._events import Ended, JobEvent, Retrying, event_of
from .._models import Graph, JobFacts, Lease, OutputFacts, Verdict
from .._table import Table
from .._twins import async_sleep
from .._updates import Parser
from .._wire import quoted
from ..errors import (
    GatewayUnreachable,
    JobFailed,
    JobStopped,
    SoukError,
    TooMany,
    VerificationFailed,
    error_of,
)
from .transport import AsyncTransport

# How often a job is looked at where it cannot be followed.
_LOOK_SECONDS = 0.2

_OVER = {"done", "failed", "interrupted", "refused", "abandoned"}


class AsyncReceipt:
    """What was run for whom, by which device, for how long and for how much."""

    def __init__(self, transport: AsyncTransport, told: Mapping[str, Any]) -> None:
        self._transport = transport
        self.json = told
        """The receipt as it is signed; `souk receipt verify` takes a file of it."""
        body: Mapping[str, Any] = told["body"]
        self.lease = int(body["lease"])
        self.provider = str(body["provider"])
        """The provider's account."""
        self.device = str(body["model"])
        self.emulated = bool(body["emulated"])
        self.paid = Credits(int(body["amount"]))
        self.price = Credits(int(body["price"]))
        """For a second of the device."""
        self.seconds = int(body["usage"]) / 1e6
        """How long the device was at work."""
        self.started = _time(body["started"])
        self.finished = _time(body["finished"])
        self.inputs = tuple(map(str, body["inputs"]))
        """The hashes of what went in."""
        self.outputs = tuple(map(str, body["outputs"]))
        """The hashes of what came out."""

    async def verify(self) -> bool:
        """Whether its arithmetic and both signatures hold."""
        verdict = decode(Verdict, await self._transport.post("/v1/receipts/verify", self.json))
        return verdict.valid

    async def check(self) -> None:
        """Raise `VerificationFailed` with what does not hold, if something does not."""
        verdict = decode(Verdict, await self._transport.post("/v1/receipts/verify", self.json))
        if not verdict.valid:
            raise VerificationFailed(
                f"the receipt of lease {self.lease} does not hold: {verdict.fault}",
                "keep it, and do not pay by it",
            )

    def __repr__(self) -> str:
        mark = " (emulated)" if self.emulated else ""
        return f"<receipt of lease {self.lease}: {self.paid}, {self.device}{mark}>"


class AsyncJob:
    """A job of the gateway's account. What is asked of it by `await` it looks up; the rest is as
    it was when it was last looked at.
    """

    def __init__(self, transport: AsyncTransport, facts: JobFacts) -> None:
        self._transport = transport
        self.facts = facts
        """All that the gateway says of it."""
        self.receipts: tuple[AsyncReceipt, ...] = ()
        """Its receipts, each signed by both sides; there once it is over."""
        self._failed: list[str] = []

    @property
    def id(self) -> str:
        """What it is called."""
        return self.facts.id

    @property
    def state(self) -> str:
        """`accepted`, `running`, `done`, `interrupted`, `failed`, `refused` or `abandoned`."""
        return self.facts.state

    @property
    def cost(self) -> Credits:
        """What is paid by receipt."""
        return self.facts.paid

    @property
    def escrow(self) -> Credits:
        """What its leases hold; what is not used returns."""
        return self.facts.escrow

    @property
    def leases(self) -> Table[Lease]:
        """What was bought for it."""
        return self.facts.leases

    @property
    def outputs(self) -> Table[OutputFacts]:
        """What its outputs are called, of which shape and with which hash."""
        return self.facts.outputs

    async def refresh(self) -> AsyncJob:
        """Look how it stands."""
        self.facts = decode(JobFacts, await self._transport.get(self._path()))
        return self

    async def events(self) -> AsyncGenerator[JobEvent]:
        """What happened to it and what happens, until it is over; `Ended` comes last."""
        cursor: str | None = None
        async with aclosing(self._changes()) as changes:
            async for is_over in changes:
                while True:
                    page = await self._transport.get(self._path("events"), {"cursor": cursor})
                    for one in page["items"]:
                        cursor = str(one["number"])
                        event = event_of(one)
                        if isinstance(event, Retrying):
                            self._failed.append(str(event))
                        yield event
                    if page["next"] is None:
                        break
                if is_over:
                    break
        await self._settle()
        yield Ended(state=self.state, cause=self.facts.cause)

    async def wait(self) -> AsyncJob:
        """Until it is over, whatever came of it."""
        async with aclosing(self._changes()) as changes:
            async for is_over in changes:
                if is_over:
                    break
        await self._settle()
        return self

    async def result(self) -> Outputs:
        """Its outputs as arrays, each checked against the hash that its receipt names: of texts or
        of dictionaries where the model gives such.

        Waits until it is over; `JobFailed` or `JobStopped` where there are no outputs.
        """
        if self.state != "done" or not self.receipts:
            await self.wait()
        if self.state != "done":
            raise self._ending()
        arrays = {output.name: await self._fetch(output) for output in self.outputs}
        return Outputs(arrays, self.id, self.cost)

    async def cancel(self) -> AsyncJob:
        """End it: what was used is paid, the rest returns."""
        await self._transport.ask("DELETE", self._path())
        return await self.wait()

    async def resume(self) -> AsyncJob:
        """Go on with one that failed or was interrupted; what was computed is kept."""
        await self._transport.ask("POST", self._path("resume"))
        self.receipts = ()
        return await self.refresh()

    async def plan(self) -> dict[str, Any]:
        """The plan that it began with, as JSON."""
        return cast("dict[str, Any]", await self._transport.get(self._path("plan")))

    async def graph(self) -> Graph:
        """Its parts, who runs each, and the tensors between them, by the plan it began with."""
        return decode(Graph, await self._transport.get(self._path("graph")))

    async def explain(self) -> dict[str, Any]:
        """Why it went as it did, as `souk job explain --json` says it."""
        return cast("dict[str, Any]", await self._transport.get(self._path("explain")))

    async def timeline(self) -> list[dict[str, Any]]:
        """What devices did, and when: spans of time in microseconds since 1970."""
        told = await self._transport.get(self._path("timeline"))
        return cast("list[dict[str, Any]]", told["spans"])

    async def trace(self) -> dict[str, Any]:
        """The same for a viewer of traces, such as Perfetto."""
        return cast("dict[str, Any]", await self._transport.get(self._path("trace")))

    async def _fetch(self, output: OutputFacts) -> NDArray[Any]:
        path = self._path(f"outputs/{quoted(output.name)}")
        file = await self._transport.fetch(path, _tensors.accepted(output))
        array = _tensors.array_in(file, output)
        if output.meaning is None:
            return array
        return _tensors.meant(await self._transport.fetch(path, _tensors.JSON), output)

    async def _settle(self) -> None:
        """Its receipts, now that it is over."""
        if self.state != "refused":
            told = await self._transport.get(self._path("receipts"))
            self.receipts = tuple(AsyncReceipt(self._transport, one) for one in told)

    def _ending(self) -> SoukError:
        """Why there are no outputs."""
        code, cause = self.facts.reason or "unexpected", self.facts.cause or "it is not said why"
        if self.state == "refused":
            return error_of({"code": code, "detail": f"job {self.id} was not begun: {cause}"})
        if self.state == "failed":
            return JobFailed(self.id, code, cause, self._failed)
        return JobStopped(self.id, self.state)

    async def _changes(self) -> AsyncGenerator[bool]:
        """Each time that something may have happened: whether the job is over."""
        if await self._is_over():
            yield True
            return
        while True:
            try:
                async with aclosing(self._followed()) as followed:
                    async for is_over in followed:
                        yield is_over
                        if is_over:
                            return
            except (TooMany, GatewayUnreachable):
                # No place among the streams, or the gateway is away: looked at now and then.
                await async_sleep(_LOOK_SECONDS)
            is_over = await self._is_over()
            yield is_over
            if is_over:
                return

    async def _followed(self) -> AsyncGenerator[bool]:
        parser = Parser()
        async with self._transport.stream(f"jobs,job:{self.id}", None) as chunks:
            # Looked at once more: it may have ended before the stream began.
            yield await self._is_over()
            async for chunk in chunks:
                is_told = False
                for message in parser.take(chunk):
                    is_told = is_told or self._concerns(message.topic, message.data)
                if is_told:
                    yield await self._is_over()

    def _concerns(self, topic: str, data: str) -> bool:
        if topic != "jobs":
            return True
        told = json.loads(data)
        return isinstance(told, dict) and cast("dict[str, Any]", told).get("id") == self.id

    async def _is_over(self) -> bool:
        until = time.monotonic() + self._transport.patience
        while True:
            await self.refresh()
            # One that was only just resumed may still be called what it was before.
            is_run = self.facts.runs_here and self.state != "done"
            if self.state != "abandoned" or is_run or time.monotonic() >= until:
                return self.state in _OVER and not is_run
            # A gateway that starts goes on with what its last life left.
            await async_sleep(_LOOK_SECONDS)

    def _path(self, below: str = "") -> str:
        path = f"/v1/jobs/{self.id}"
        return f"{path}/{below}" if below else path

    def __repr__(self) -> str:
        return f"<job {self.id}: {self.state}, {self.cost}>"


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
