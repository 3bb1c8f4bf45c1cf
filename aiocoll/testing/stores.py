"""What every store must do, as checks that run against any of them; the rule: they see it only through `Store`.

Write a store of your own, then::

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    async def test_conforms(check):
        await check(open_mine)     # async open_mine() -> Store: each call gives one more handle on the same data
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.store.base import KEY_BYTES_MAX, VALUE_BYTES_MAX, Store

Open = Callable[[], Awaitable[Store]]
Check = Callable[[Open], Coroutine[Any, Any, None]]

CHECKS: dict[str, Check] = {}

# Only a hang is a failure: the machine may be slow.
HANG_SECONDS = 30.0


def check(function: Check) -> Check:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function


async def raised(kind: type[BaseException], awaitable: Awaitable[Any]) -> str:
    """The text of the error that must come."""
    try:
        result = await awaitable
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected, got {result!r}")


async def soon(awaitable: Awaitable[Any]) -> Any:
    """The result, or a failure instead of a hang."""
    async with asyncio.timeout(HANG_SECONDS):
        return await awaitable


async def turns() -> None:
    """Let what was just started get as far as it gets without outside help."""
    for _ in range(5):
        await asyncio.sleep(0)


# -- values


@check
async def values_are_shared(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    await a.set("key", b"first")
    assert await b.get("key") == b"first"
    await b.set("key", bytearray(b"second"))
    await b.set("view", memoryview(b"abcdef")[1:3])
    assert await a.get("key") == b"second"
    assert await a.get("view") == b"bc"
    await a.set("empty", b"")
    assert await b.get("empty") == b""
    await a.set("", b"no name")
    await a.set("Schlüssel/ключ\n\0", bytes(range(256)))
    assert await b.get("") == b"no name"
    assert await b.get("Schlüssel/ключ\n\0") == bytes(range(256))


@check
async def get_waits(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    waiting = asyncio.ensure_future(a.get("later"))
    await turns()
    assert not waiting.done()
    await b.set("later", b"now")
    assert await soon(waiting) == b"now"


@check
async def a_waiting_get_blocks_nobody(open_store: Open) -> None:
    a = await open_store()
    waiting = [asyncio.ensure_future(a.get(f"never {i}")) for i in range(10)]
    await turns()
    for i in range(100):
        await soon(a.set(f"key {i}", b"%d" % i))
        assert await soon(a.get(f"key {i}")) == b"%d" % i
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@check
async def late_gets_say_what_is_missing(open_store: Open) -> None:
    a = await open_store()
    text = await raised(RendezvousTimeoutError, a.get("nope", timeout=0.05))
    assert "nope" in text and a.where in text, text
    await raised(RendezvousTimeoutError, a.get("nope", timeout=0))
    await raised(TimeoutError, a.wait(["one", "two"], timeout=0.02))
    await raised(RendezvousError, a.multi_get(["one", "two"], timeout=0.02))
    await raised(RendezvousTimeoutError, a.queue_pop("queue", timeout=0.02))
    a.timeout = 0.05
    await raised(RendezvousTimeoutError, a.get("nope"))
    await a.set("nope", b"yes")
    assert await a.get("nope", timeout=0) == b"yes"
    assert await a.get("nope", timeout=math.inf) == b"yes"


@check
async def cancelled_gets_are_withdrawn(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    waiting = asyncio.ensure_future(a.get("key"))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    await b.set("key", b"value")
    assert await soon(a.get("key")) == b"value"


@check
async def append_and_delete(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    await a.append("text", b"one")
    await b.append("text", b", two")
    assert await a.get("text") == b"one, two"
    assert await b.delete("text") is True
    assert await a.delete("text") is False
    assert await a.check(["text"]) is False
    await a.append("text", b"anew")
    assert await b.get("text") == b"anew"


@check
async def counters(open_store: Open) -> None:
    stores = [await open_store() for _ in range(3)]
    values = await asyncio.gather(*(store.add("count") for store in stores for _ in range(10)))
    assert sorted(values) == list(range(1, 31))
    assert await stores[0].add("count", -35) == -5
    assert await stores[1].get("count") == b"-5"
    assert await stores[2].add("count", 0) == -5
    await stores[0].set("ten", b"10")
    assert await stores[1].add("ten", 5) == 15
    await stores[0].set("word", b"ten")
    assert "word" in await raised(UsageError, stores[1].add("word"))
    assert await stores[0].add("big", (1 << 63) - 1) == (1 << 63) - 1
    await raised(UsageError, stores[1].add("big"))
    assert await stores[0].get("big") == b"%d" % ((1 << 63) - 1)


@check
async def compare_set_as_torch_has_it(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    assert await a.compare_set("key", b"", b"mine") == b"mine"
    assert await b.compare_set("key", b"", b"yours") == b"mine"
    assert await b.compare_set("key", b"mine", b"yours") == b"yours"
    assert await a.compare_set("key", b"mine", b"mine again") == b"yours"
    assert await a.compare_set("missing", b"something", b"new") == b"something"
    assert await a.check(["missing"]) is False
    won = await asyncio.gather(*((a, b)[i % 2].compare_set("race", b"", b"%d" % i) for i in range(10)))
    assert len(set(won)) == 1


# -- many keys


@check
async def wait_for_several(open_store: Open) -> None:
    """Also when some are set before the wait, some after, in another order, and one goes away in between."""
    a, b = await open_store(), await open_store()
    await b.set("two", b"2")
    waiting = asyncio.ensure_future(a.wait(["one", "two", "three"]))
    values = asyncio.ensure_future(a.multi_get(["three", "two", "one", "two"]))
    await turns()
    await b.set("three", b"3")
    await b.delete("two")
    await b.set("one", b"1")
    await turns()
    assert not waiting.done() and not values.done()
    await b.set("two", b"22")
    await soon(waiting)
    assert await soon(values) == [b"3", b"22", b"1", b"22"]
    await a.wait([])
    assert await a.multi_get([]) == []


@check
async def many_keys(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    items: dict[str, Any] = {f"many/{i:04}": b"%d" % i for i in range(500)}
    waiting = asyncio.ensure_future(b.multi_get(list(reversed(items))))
    await a.multi_set(items)
    await a.multi_set({})
    assert await soon(waiting) == list(reversed(items.values()))
    assert await b.check(items) is True
    assert await b.check([*items, "other"]) is False
    assert await b.check([]) is True
    await a.set("other", b"")
    assert await b.list("many/") == list(items)
    assert await b.list("many/000") == [f"many/000{i}" for i in range(10)]
    assert await b.list() == [*items, "other"]
    assert await b.list("nothing") == []
    assert await b.num_keys() == 501


# -- queues


@check
async def queues_are_first_in_first_out(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    for i in range(5):
        await a.queue_push("queue", b"%d" % i)
    assert await b.queue_len("queue") == 5
    assert await b.queue_len("none") == 0
    assert [await b.queue_pop("queue") for _ in range(3)] == [b"0", b"1", b"2"]
    assert await a.queue_pop("queue", timeout=0) == b"3"
    await a.wait(["queue"])
    assert await a.check(["queue"]) and await a.list() == ["queue"]
    assert await b.queue_pop("queue") == b"4"
    assert await a.queue_len("queue") == 0
    assert await a.check(["queue"]) is False
    await a.queue_push("queue", b"x")
    assert await b.delete("queue") is True
    assert await a.num_keys() == 0


@check
async def each_item_goes_to_one_taker(open_store: Open) -> None:
    stores = [await open_store() for _ in range(3)]
    takers = [asyncio.ensure_future(store.queue_pop("jobs")) for store in stores for _ in range(4)]
    await turns()
    for i in range(12):
        await stores[i % 3].queue_push("jobs", b"%d" % i)
    taken = await soon(asyncio.gather(*takers))
    assert sorted(taken, key=int) == [b"%d" % i for i in range(12)]


@check
async def a_cancelled_taker_loses_nothing(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    for i in range(20):
        taker = asyncio.ensure_future(a.queue_pop("jobs"))
        pusher = asyncio.ensure_future(b.queue_push("jobs", b"%d" % i))
        for _ in range(i % 7):
            await asyncio.sleep(0)
        taker.cancel()
        await pusher
        (outcome,) = await asyncio.gather(taker, return_exceptions=True)
        if not isinstance(outcome, bytes):
            outcome = await soon(b.queue_pop("jobs"))
        assert outcome == b"%d" % i
    await raised(RendezvousTimeoutError, a.queue_pop("jobs", timeout=0.01))
    await b.queue_push("jobs", b"last")
    assert await soon(b.queue_pop("jobs")) == b"last"


# -- bounds


@check
async def wrong_arguments_are_refused(open_store: Open) -> None:
    a = await open_store()
    wrong: Any = "text"
    assert "bytes" in await raised(UsageError, a.set("key", wrong))
    wrong = b"key"
    assert "str" in await raised(UsageError, a.get(wrong))
    await raised(UsageError, a.set("k" * (KEY_BYTES_MAX + 1), b""))
    await raised(UsageError, a.set("ü" * (KEY_BYTES_MAX // 2 + 1), b""))
    await raised(UsageError, a.set("\ud800", b""))
    assert str(VALUE_BYTES_MAX) in await raised(UsageError, a.set("key", bytes(VALUE_BYTES_MAX + 1)))
    await raised(UsageError, a.wait("key"))
    for bad in (-1, math.nan, True, "5"):
        wrong = bad
        await raised(UsageError, a.get("key", timeout=wrong))
    for bad in (1.5, True, "1", 1 << 63):
        wrong = bad
        await raised(UsageError, a.add("key", wrong))
    assert await a.num_keys() == 0


@check
async def the_largest_values_fit(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    # 96 bytes are left for those who prefix.
    key, value = "k" * (KEY_BYTES_MAX - 96), bytes(range(256)) * (VALUE_BYTES_MAX // 256)
    await a.set(key, value)
    assert await b.get(key) == value
    await raised(UsageError, b.append(key, b"x"))
    assert await a.get(key) == value
    await a.multi_set({f"{i}": value for i in range(12)})
    assert await soon(b.multi_get([f"{i}" for i in range(12)])) == [value] * 12


# -- the end


@check
async def closing(open_store: Open) -> None:
    a, b = await open_store(), await open_store()
    await a.set("key", b"stays")
    await a.close()
    await a.close()
    assert "closed" in await raised(RendezvousError, a.get("key"))
    await raised(RendezvousError, a.set("key", b""))
    assert await b.get("key") == b"stays"
    assert repr(a) and repr(b)


@check
async def nothing_waits_on_a_busy_loop(open_store: Open) -> None:
    """A wait costs next to no processor time."""
    a = await open_store()
    before = time.process_time()
    await raised(RendezvousTimeoutError, a.get("never", timeout=0.5))
    assert time.process_time() - before < 0.25
