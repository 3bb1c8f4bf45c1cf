"""What users and our own tests check collective programs with: `run` on any fabric, leak checks, conformance suites.

    run        run(size, main, fabric): simulated, in one loop, over sockets, in processes
    processes  ranks as real processes
    leaks      what a piece of code left behind
    stores     the conformance suite of stores
"""

from ..sim.ranks import CRASHED, Crash
from .run import FABRICS, run

__all__ = ["CRASHED", "FABRICS", "Crash", "run"]
