"""Many ranks in one process, in virtual time, from one seed: the real endpoint and algorithms on real values.

loop      an event loop whose clock jumps and whose order among ranks is drawn
network   what a message costs
fabric    the links of all worlds of a run
job       the store, and newcomers that wait there
ranks     tasks of a run: start, stop, settle
faults    what can go wrong, as records
trouble   what it does to a run
deadlock  the text of a DeadlockError
run       run(size, main), Simulation
"""

from .faults import Cancel, Crash, Fault, Freeze, OneWay, Partition, SlowLink, SlowRank
from .network import Network, Traffic
from .ranks import CANCELLED, CRASHED, FROZEN
from .run import Simulation, run

__all__ = [
    "CANCELLED", "CRASHED", "FROZEN", "Cancel", "Crash", "Fault", "Freeze", "Network", "OneWay", "Partition",
    "Simulation", "SlowLink", "SlowRank", "Traffic", "run",
]  # fmt: skip
