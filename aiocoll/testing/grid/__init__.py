"""The matrix of calls: op x collective x dtype x layout x form x size x transport, each cell right or refused.

Rule: what a cell must give is NumPy's word, and a new op, algorithm or dtype is in the matrix without being listed.

    kinds   dtypes, layouts, values
    loops   what NumPy can
    cells   which cells there are, and fair parts of them
    oracle  what a cell must give
    forms   how its call is made
    play    plays cells and says what is wrong
    page    what came of them, as tables
"""

from .cells import FORMS, Cell, cell_of, cells, rows, sample
from .play import REFUSED, RIGHT, Verdict, grouped, play

__all__ = ["FORMS", "REFUSED", "RIGHT", "Cell", "Verdict", "cell_of", "cells", "grouped", "play", "rows", "sample"]
