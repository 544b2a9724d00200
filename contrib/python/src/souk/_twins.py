"""What differs between the two clients by more than `async` and `await`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Given = TypeVarTuple("Given")

Item = TypeVar("Item")


async def async_sleep(seconds: float) -> None:
    """Let others go on for so long."""
    await anyio.sleep(seconds)


def sleep(seconds: float) -> None:
    """Wait so long."""
    time.sleep(seconds)


async def async_in_thread(call: Callable[[Unpack[Given]], Item], *given: Unpack[Given]) -> Item:
    """What a call that waits gives, while others go on."""
    return await anyio.to_thread.run_sync(call, *given)


async def async_shielded_in_thread(
    call: Callable[[Unpack[Given]], Item], *given: Unpack[Given]
) -> Item:
    """What a call gives that must be made, and waited for, though one is cancelled."""
    with anyio.CancelScope(shield=True):
        return await anyio.to_thread.run_sync(call, *given)
    raise AssertionError("a shield ends no call early")


def in_thread(call: Callable[[Unpack[Given]], Item], *given: Unpack[Given]) -> Item:
    """What a call gives."""
    return call(*given)


async def async_each(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncIterator[Item]:
    """The items of either kind."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for item in items:
        yield item


def each(items: Iterable[Item]) -> Iterator[Item]:
    """The items."""
    return iter(items)
