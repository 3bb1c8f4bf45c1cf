"""All my links and the matching of what arrives with what is wanted; the verbs that algorithms are made of.

    operations   one awaitable object per send or receive
    inbox        what arrived before it was wanted; offers and grants; the bound on unreceived bytes
    channel      one call's slice of the endpoint: the verbs; near: the quick way through shared memory
    private      the verbs that let peers read this rank's memory; rivals: which of two ways has been quicker
    message      one message that comes, is sent, or is waited for
    mailbox      point-to-point messages of one group: tags, any source
    news         the words of errors that travel
    inquiry      what the others answer when an operation is late
    scope        what is kept of one group: members, calls under way, calls that are over
    agreement    what members settle after a failure; recovery is one such call, leading its
                 leader's part, outcome what it may come to, majority the arithmetic behind it
    failure      how bad news travels, and how a group breaks; refusals, losses and lateness are its parts
    waiting      how an operation waits; stalls: what it says when that takes long
    snapshot     what a dump holds
    core         the Endpoint that holds them together

The rule: everything here is synchronous and runs in the thread of the loop; a verb waits by parking one future.
"""

from .channel import Channel
from .core import Endpoint, Member
from .scope import Scope

__all__ = ["Channel", "Endpoint", "Member", "Scope"]
