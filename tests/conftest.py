"""What every test gets: a clean environment, hypothesis profiles, and a check that it leaves nothing behind.

The rule: a test that leaves a task, thread, descriptor or child process fails, and says which. One that must leave
something says why with ``@pytest.mark.leaks("reason")``.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    max_examples=30,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("full", settings.get_profile("quick"), max_examples=200)
settings.load_profile("quick")  # --hypothesis-profile=full overrides it

# What a test run inside somebody's job would inherit, and must not: a test's place in the world is what the test says.
_PLACE_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PLACE_PREFIXES = ("AIOCOLL_", "TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_", "SLURM_")

_GRACE_SECONDS = 5.0  # for threads and children that are on their way out when the test ends


def pytest_configure() -> None:
    for name in list(os.environ):
        if name in _PLACE_VARIABLES or name.startswith(_PLACE_PREFIXES):
            del os.environ[name]


# ---------------------------------------------------------------------------------------------- leaks


@dataclass(frozen=True, slots=True)
class Belongings:
    """What this process holds at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[psutil.Process]
    descriptors: frozenset[tuple[int, str]]

    @classmethod
    def now(cls) -> Belongings:
        return cls(frozenset(_threads()), frozenset(_children()), frozenset(_descriptors()))

    def beyond(self, before: Belongings) -> list[str]:
        """What stands here and did not stand in ``before``, in words."""
        threads = [f"thread {thread.name!r}" for thread in self.threads - before.threads if thread.is_alive()]
        children = [f"child {child!r}" for child in self.children - before.children if child.is_running()]
        files = [f"descriptor {number} -> {target}" for number, target in self.descriptors - before.descriptors]
        return sorted(threads) + sorted(children) + sorted(files)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if not thread.name.startswith(("pytest_timeout", "execnet"))]


def _standing_helpers() -> set[int | None]:
    """The processes that multiprocessing starts once and keeps for the whole run."""
    tracker, server = resource_tracker._resource_tracker, forkserver._forkserver  # type: ignore[attr-defined]
    return {tracker._pid, server._forkserver_pid}


def _children() -> list[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are none: known in a microsecond, where a look through /proc takes thousands
        return []
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in _standing_helpers()]


def _descriptors() -> list[tuple[int, str]]:
    tracker, server = resource_tracker._resource_tracker, forkserver._forkserver  # type: ignore[attr-defined]
    kept = {tracker._fd, server._forkserver_alive_fd}
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if int(name) not in kept and not target.startswith("/dev/"):
            found.append((int(name), target))
    return found


def _left_behind(before: Belongings) -> list[str]:
    """Gives what is ending a few seconds to end, then says what has stayed."""
    left = Belongings.now().beyond(before)
    if not left:
        return []
    gc.collect()  # an open socket in a reference cycle is closed (and warned about) here
    now = Belongings.now()
    for thread in now.threads - before.threads:
        thread.join(_GRACE_SECONDS)
    psutil.wait_procs(list(now.children - before.children), timeout=_GRACE_SECONDS)
    return Belongings.now().beyond(before)


def _has_lasting_fixtures(item: pytest.Item) -> bool:
    """Does the test use a fixture of ours that outlives it? Its belongings are then not the test's."""
    definitions = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    return any(each[-1].scope != "function" and each[-1].baseid for each in definitions)


_before = pytest.StashKey[Belongings]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if not _has_lasting_fixtures(item):
        item.stash[_before] = Belongings.now()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    if _before not in item.stash:
        item.stash[_before] = Belongings.now()
    function = getattr(item, "obj", None)
    if inspect.iscoroutinefunction(function) and item.get_closest_marker("leaks") is None:
        item.obj = _watching_tasks(function)  # type: ignore[attr-defined]
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    before = item.stash.get(_before, None)
    if before is None or item.get_closest_marker("leaks") is not None:
        return
    left = _left_behind(before)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


def _watching_tasks(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """The test function, failing when tasks that it started are still pending a moment after it has returned."""

    @functools.wraps(function)
    async def watched(*args: Any, **kwargs: Any) -> None:
        before = asyncio.all_tasks()
        await function(*args, **kwargs)
        fresh = asyncio.all_tasks() - before
        if not fresh:
            return
        _, pending = await asyncio.wait(fresh, timeout=1.0)
        if pending:
            names = sorted(map(repr, pending))
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=1.0)
            pytest.fail("the test left tasks running: " + "; ".join(names), pytrace=False)

    return watched
