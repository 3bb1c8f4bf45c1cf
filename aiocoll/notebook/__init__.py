"""Ranks that live as long as a notebook does: ``%load_ext aiocoll``, then ``%%ranks -n 4`` on top of a cell.

The rule: IPython is a guest's host. Nothing here imports it; what it needs of us is handed to it when it asks.

cells     what travels between notebook and ranks: orders and answers
crew      the notebook's end: starts the ranks, sends cells, gathers answers; passes interrupts on
worker    a rank's end: runs cells in one namespace, one after the other
magics    ``%%ranks`` and ``%ranks``: words to calls
"""

from .magics import load_ipython_extension, unload_ipython_extension

__all__ = ["load_ipython_extension", "unload_ipython_extension"]
