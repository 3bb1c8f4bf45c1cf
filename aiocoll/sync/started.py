"""A started call: the running side of a Work, on the loop's thread.

The rule: everything here happens on the loop, except for asking it to.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from typing import TYPE_CHECKING, Any, Generic

from ..errors import GroupBrokenError
from .stepping import Continued, Make, T, coroutine_of

if TYPE_CHECKING:
    from .drivers import Driver


class Started(Generic[T]):
    """One call that runs on the loop's thread and reports to a Work."""

    __slots__ = ("_driver", "_future", "_make", "_task", "_withdrawn", "name")
    name: str

    def __init__(self, driver: Driver, make: Make[T], future: concurrent.futures.Future[T], name: str) -> None:
        self._driver, self._make, self._future, self.name = driver, make, future, name
        self._task: asyncio.Task[T] | None = None
        self._withdrawn = False

    def start(self) -> None:
        if self._withdrawn:
            return
        result: Any = None
        try:
            coroutine = coroutine_of(self._make())
            parked_on = coroutine.send(None)
        except StopIteration as stop:
            result = stop.value
        except BaseException as error:
            self._settle(None, error)
            return
        else:
            self._task = self._driver.loop.create_task(Continued(coroutine, parked_on))
            self._task.add_done_callback(self._finish)
            return
        self._settle(result, None)  # not above: what a callback raises would come with a StopIteration that is ours

    def cancel(self) -> None:
        self._driver.loop.call_soon_threadsafe(self._cancel)

    def withdraw(self) -> None:
        """Whoever began it was interrupted and has no Work of it: it does not start, or ends."""
        self._withdrawn = True
        self._driver.operations.discard(self)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.cancel()

    @property
    def lost(self) -> bool:
        """Whether it has not come to a good end; asked when it can come to no other."""
        return not self._future.done() or self._future.exception() is not None

    def give_up(self) -> None:
        """Its loop has ended without it."""
        self._settle(None, GroupBrokenError(f"{self.name} did not end when its world was closed, and was given up"))

    def refuse_to_block(self) -> None:
        if not self._future.done():
            self._driver.refuse_if_unusable()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._settle(None, concurrent.futures.CancelledError(f"{self.name} was cancelled"))
        elif (error := task.exception()) is not None:
            self._settle(None, error)
        else:
            self._settle(task.result(), None)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        self._driver.operations.discard(self)
        if self._future.done():  # given up by Work.cancel()
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def __repr__(self) -> str:
        return f"Started({self.name})"
