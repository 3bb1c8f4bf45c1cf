"""Blocking code: ``with aiocoll.sync.connect() as group: total = group.all_reduce(x)``.

The rule: this package adds no behaviour to the async API, it only waits for it.

- ``group``: SyncGroup, the methods of Group, blocking, over ``calls`` and ``about``; ``start``: the same, started
- ``work``: a call under way, seen from outside; ``started``: the same on its loop
- ``leaving``: worlds that a program did not leave
- ``drivers``: who runs the loop, a ``quiet`` one; ``stepping``: how a coroutine is run by hand; ``interrupt``: when
  Ctrl-C arrives
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..observe import dumping
from .drivers import Driver
from .group import SyncGroup
from .leaving import leave_at_the_end
from .work import Work

if TYPE_CHECKING:
    from ..group import Group

__all__ = ["SyncGroup", "Work", "connect"]


def connect(init_method: str | None = None, **options: Any) -> SyncGroup:
    """Joins the world like ``aiocoll.connect(...)``, with the same arguments, and blocks until it is complete.

    Returns the group of all ranks, a context manager that disconnects at its end. Works in a script, in any thread and
    inside a running event loop, which then stands still for as long as a call takes.
    """
    from ..world import connect as connect_async

    driver = Driver(str(options.get("name", "world")))

    made: list[Group] = []

    async def joined() -> Group:
        made.append(await connect_async(init_method, **options))
        return made[0]

    async def left() -> None:
        for group in made:
            assert group._connection is not None
            await group._connection.lineage.close()

    try:
        group = driver.run_as_task(joined)
        driver.serve(group._endpoint, group.local_size)
        dumping.install()  # where the loop has a thread of its own, that thread could not
        joined_group = SyncGroup(group, driver, root=True)
        if group.size > 1 and group._endpoint.transport.name == "inproc":
            joined_group.close()
            raise UsageError(
                "transport='inproc' joins ranks that share one event loop, and every blocking group has a loop of its "
                "own; use 'auto' or 'tcp', or the async API"
            )
        leave_at_the_end(joined_group)
    except BaseException:  # Ctrl-C, say, which can come when the world is complete
        driver.close(left)
        raise
    return joined_group
