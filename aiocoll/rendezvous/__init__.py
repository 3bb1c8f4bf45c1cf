"""How ranks meet: from an address to the list of all members.

One file per scheme in ``schemes/``, found by its name; whatever the scheme, it ends in `join`, over whatever store.

meet.py       settles what arguments, URL and environment say, then calls the scheme's file
url.py        reading init_method, rank and size
hosts.py      which address of this host faces the others
request.py    what a scheme is asked for
join.py       the protocol over any store
rounds.py     which meeting under a name is the current one
roster.py     the state of a meeting, replayed from its log; pure
meeting.py    what a completed meeting hands over
introduction.py  what ranks are told by way of their launcher, for pmi:// and session://
pmi_client.py  PMI-1, as a rank speaks it
multicast.py  finding the store by announcements
beacon.py     the datagrams of these
"""

from aiocoll.rendezvous.join import join
from aiocoll.rendezvous.meet import meet
from aiocoll.rendezvous.meeting import Meeting

__all__ = ["Meeting", "join", "meet"]
