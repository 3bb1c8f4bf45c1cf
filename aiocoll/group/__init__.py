"""Groups: what users await. Argument checks, call numbers, choice of algorithm, delivery of results.

    calls        call numbers, begin and end of a call, refusals
    posted       what a call returns: to be awaited, or withdrawn
    ready        calls that come again
    bundles      several calls of one kind as one
    reductions   reduce, all_reduce, reduce_scatter, scan, exscan
    workspace    the memory that they work in
    cuts         what reduce_scatter cuts
    broadcasts   broadcast
    exchanges    all_to_all, and what moves a part per rank
    movement     gather, all_gather, scatter, barrier
    objects      the same for plain Python data
    messages     point-to-point
    carrier      what another library must do to move the arrays
    packing      arrays ready to travel, and back
    recovery     agree, shrink, exclude, abort
    growing      grow
    ownership    which connections groups keep open
    typed        what type checkers are told
    group        Group: members, subgroups, close

The rule: a method is a plain ``def`` that takes its call number and returns a coroutine; nothing is sent before the
arguments have been checked.
"""

from .group import Group
from .messages import Message

__all__ = ["Group", "Message"]
