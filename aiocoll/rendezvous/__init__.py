"""How ranks meet: from an address to the list of all members.

One file per scheme in ``schemes/``, found by its name; whatever the scheme, it ends in `join`, over whatever store.

process.py   which process is this, and is that one dead
roster.py    the state of a meeting, replayed from its log; pure
join.py      the protocol over any store
meeting.py   what a completed meeting hands over
"""

from aiocoll.rendezvous.join import join
from aiocoll.rendezvous.meeting import Meeting

__all__ = ["Meeting", "join"]
