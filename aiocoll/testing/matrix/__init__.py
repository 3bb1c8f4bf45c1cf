"""The matrix of failures: every algorithm and kind of call x sizes x victims x instants x faults, in virtual time.

Rule: a case is a line of text that replays it, and is right or has findings; no case knows another.

    programs  what the ranks do: each registered algorithm
    calls     the same: each kind of call of a group
    case      one case, as a line too
    play      plays one, and says what is wrong
    verdict   what a rank may have come to
    recovering  cases in which the others go on
    growing   the same, and newcomers come in
    sample    which cases there are, and fair parts of them
"""

from .case import CUTS, Case
from .play import collecting_now_and_then, play, programs
from .programs import FAULTS
from .sample import SIZES, Cell, cells, drawn, evenly, sample

__all__ = [
    "CUTS", "FAULTS", "SIZES", "Case", "Cell", "cells", "collecting_now_and_then", "drawn", "evenly", "play",
    "programs", "sample",
]  # fmt: skip
