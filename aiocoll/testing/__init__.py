"""What users and our own tests check collective programs with: `run` on any fabric, leak checks, conformance suites.

run        run(size, main, fabric): simulated, in one loop, over sockets, in processes
processes  ranks as real processes
proxy      FaultProxy: what networks do to connections between ranks, with pipes.py for one connection
leaks      what a piece of code left behind
stores     the conformance suite of stores
"""

from ..sim import CANCELLED, CRASHED, FROZEN, Cancel, Crash, Freeze, OneWay, Partition, SlowLink, SlowRank
from .proxy import FaultProxy
from .run import FABRICS, run

__all__ = [
    "CANCELLED", "CRASHED", "FABRICS", "FROZEN", "Cancel", "Crash", "FaultProxy", "Freeze", "OneWay", "Partition",
    "SlowLink", "SlowRank", "run",
]  # fmt: skip
