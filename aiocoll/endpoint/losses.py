"""Ranks that are gone: who, why, how surely, and what that means for the groups that they belong to.

The rule: a rank that died breaks every group that it belongs to; one that said goodbye breaks only what waits for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NoReturn

from ..errors import AiocollError, PeerLostError, WireError

if TYPE_CHECKING:
    from .agreement import Agreement
    from .channel import Call
    from .core import Endpoint
    from .inquiry import Inquiry
    from .scope import Scope

_MADE: Final = struct.Struct("<QQ")
"""A group, and how many calls were made in it."""
_GROUPS_MAX: Final = 64


class Losses:
    """What one endpoint knows of ranks that are gone."""

    endpoint: Endpoint
    agreement: Agreement
    inquiries: dict[int, Inquiry]

    def __init__(self) -> None:
        self.absent: dict[int, str] = {}
        """World ranks that are gone for good, and why."""
        self.presumed: set[int] = set()
        """Those of them (or of those others told of) whom nobody saw end: they have only been silent for too long."""
        self._hearsay: dict[int, str] = {}
        """Why world ranks are lost to which this rank had no link, as others told."""
        self.farewells: dict[int, dict[int, int]] = {}
        """How many calls those that left had made, by world rank and group."""

    def break_group(
        self, scope: Scope, error: AiocollError, *, call: Call | None = None, number: int = -1, by: int | None = None
    ) -> None:
        """Fails everything pending on the group and tells the others."""
        raise NotImplementedError

    def loss(self, peer: int, scope: Scope, operation: str, reason: str | None = None) -> PeerLostError:
        """The error for a lost world rank as ``scope`` sees it."""
        member = self.endpoint.members[peer]
        rank = scope.index.get(peer)
        why = reason or self.why(peer) or "its connection ended"
        who = f"rank {rank} of group {scope.label!r} (world rank {member.number}, {member.host}, pid {member.pid})"
        return PeerLostError(
            f"{who} is lost: {why}; here in {operation or scope.last}",
            group=scope.label, host=member.host, pid=member.pid, operation=operation, **scope.who(peer),
        )  # fmt: skip

    def why(self, peer: int) -> str:
        """What is known of the end of a world rank, seen or heard; empty: nothing."""
        return self.absent.get(peer) or self._hearsay.get(peer, "")

    def certain(self, peer: int) -> bool:
        """Whether a world rank is known to have ended, here or where others saw it: a kernel has spoken."""
        return peer not in self.presumed and bool(self.why(peer))

    def hearsay(self, peer: int, reason: str, *, certain: bool) -> None:
        """Others say that a world rank is lost; what this rank saw itself counts more."""
        if peer not in self.absent:
            self._hearsay[peer] = reason
            if certain:
                self.presumed.discard(peer)
            else:
                self.presumed.add(peer)

    def lost(self, peer: int, reason: str, *, certain: bool = True) -> None:
        """The link to ``peer`` ended without a BYE: it died, and breaks every group that it belongs to. Not
        ``certain``: it was only silent for too long, and may live on behind a broken network."""
        if peer in self.absent:
            return
        self.absent[peer] = reason
        if certain:
            self.presumed.discard(peer)
        else:
            self.presumed.add(peer)
        self.endpoint.note("peer_lost", rank=self.endpoint.rank, peer=peer, reason=reason, certain=certain)
        for scope in list(self.endpoint.scopes.values()):
            if peer in scope.index:
                self.break_group(scope, self.loss(peer, scope, "", reason))
        for inquiry in list(self.inquiries.values()):
            inquiry.answered(peer, {})
        self.agreement.gone(peer)

    def left(self, peer: int, reason: str = "it left: it closed its world") -> None:
        """``peer`` said BYE, or was gone before any link to it was made: others go on among themselves; whoever waits
        for it waits in vain."""
        if peer in self.absent:
            return
        self.absent[peer] = reason
        self.endpoint.note("peer_left", rank=self.endpoint.rank, peer=peer, reason=reason)
        inbox = self.endpoint.inbox
        for call in inbox.depart(peer):
            self.break_group(call.scope, self.loss(peer, call.scope, call.label))
        for scope in list(self.endpoint.scopes.values()):
            if peer in scope.index:
                scope.mailbox.depart(peer)
        for ticket in [ticket for ticket in inbox.offers if ticket[0] == peer]:
            inbox.offers.pop(ticket)[0].finish(ConnectionError(reason))
        for inquiry in list(self.inquiries.values()):
            inquiry.answered(peer, {})
        self.agreement.gone(peer)

    def farewell(self) -> bytes:
        """What goes with this rank's BYE: how many calls it made in its groups, the latest of them at least."""
        made = self.endpoint.inbox.gone | {scope.id: scope.next_call for scope in self.endpoint.scopes.values()}
        return b"".join(_MADE.pack(*each) for each in list(made.items())[-_GROUPS_MAX:])

    def said_goodbye(self, peer: int, farewell: bytes) -> None:
        """``peer`` leaves."""
        if len(farewell) % _MADE.size:
            raise WireError(f"a farewell of {len(farewell)} bytes")
        self.farewells[peer] = dict(_MADE.iter_unpack(farewell))
        self.left(peer)

    def died(self, peer: int, reason: str) -> None:
        """``peer``, gone before any link to it was made, has not left: it died."""
        self.absent.pop(peer, None)
        self.lost(peer, reason)

    def in_vain(self, call: Call, peer: int) -> NoReturn:
        """A call needs a rank that is gone: breaks the group and raises."""
        error = self.loss(peer, call.scope, call.label)
        self.break_group(call.scope, error)
        raise call.error or error

    def stands_still(self, scope: Scope, worlds: Iterable[int]) -> None:
        """Members give no sign in a group that is broken: what they do not take keeps no memory from others."""
        for world in worlds:
            link = self.endpoint.near[world]
            if link is not None:
                link.recall(scope.id)
