"""connect and run: from a place to a store, links and the first group, its growth, and back in good order.

connecting   connect(), and what it returns
opening      one endpoint: from an open ear to its links, and its end
admitting    how a group that grows finds newcomers
newcomer     how a newcomer gets in
running      run()

The rule: whatever was opened here is closed here, also when meeting fails half-way.
"""

from .connecting import Connecting, connect
from .running import new_event_loop, run

__all__ = ["Connecting", "connect", "new_event_loop", "run"]
