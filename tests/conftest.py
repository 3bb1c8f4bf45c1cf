"""What every test gets: a clean environment, hypothesis profiles, and a check that it leaves nothing behind.

The rule: a test that leaves a task, thread, descriptor or child process fails, and says which. One that must leave
something says why with ``@pytest.mark.leaks("reason")``.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from aiocoll.testing.leaks import Belongings, LeakError, left_behind, no_leaked_tasks

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
_PLACE_PREFIXES = (
    "AIOCOLL_", "TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_", "MPI_LOCAL", "MV2_", "SLURM_", "JOB_COMPLETION_INDEX",
)  # fmt: skip

_GRACE_SECONDS = 5.0  # for threads and children that are on their way out when the test ends


def pytest_configure() -> None:
    for name in list(os.environ):
        if name in _PLACE_VARIABLES or name.startswith(_PLACE_PREFIXES):
            del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it in what they start in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of tests stand in memory until the end; whoever looks for garbage meanwhile need not look at them."""
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------------------------------------- leaks


def _has_lasting_fixtures(item: pytest.Item) -> bool:
    """Does the test use a fixture of ours that outlives it? Its belongings are then not the test's."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
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
        item.obj = _watching_tasks(function)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    yield
    before = item.stash.get(_before, None)
    if before is None or item.get_closest_marker("leaks") is not None:
        return
    left = left_behind(before, grace=_GRACE_SECONDS)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


def _watching_tasks(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    """The test function, failing when tasks that it started are still pending a moment after it has returned."""

    @functools.wraps(function)
    async def watched(*args: Any, **kwargs: Any) -> None:
        try:
            async with no_leaked_tasks():
                await function(*args, **kwargs)
        except LeakError as error:
            pytest.fail(f"the test {error}", pytrace=False)

    return watched
