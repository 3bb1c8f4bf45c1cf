"""torch's names of failures, for code that catches them.

The rule: a name stands for the class of ours that covers what torch raises under it; what is raised here says more.
"""

from __future__ import annotations

from ..errors import AiocollError, RendezvousError

DistError = AiocollError
"""Everything."""
DistBackendError = AiocollError
"""A call that failed: a rank is lost, late or made another call, or the group is broken."""
DistNetworkError = AiocollError
"""A connection that failed, be it to a rank or to a store."""
DistStoreError = RendezvousError
"""A store, or what meets in one, failed or was late."""
