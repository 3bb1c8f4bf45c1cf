"""Many ranks in one process, in virtual time, from one seed: the real endpoint and algorithms on real values.

    loop      an event loop whose clock jumps and whose order among ranks is drawn
    network   what a message costs
    ranks     tasks of a run: start, crash, settle
    deadlock  the text of a DeadlockError
    run       run(size, main), Simulation
"""

from .network import Network, Traffic
from .ranks import CRASHED, Crash
from .run import Simulation, run

__all__ = ["CRASHED", "Crash", "Network", "Simulation", "Traffic", "run"]
