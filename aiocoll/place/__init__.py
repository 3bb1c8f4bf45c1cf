"""Where am I: which rank of which job the environment says this process is.

Rule: one file per environment with ``PRIORITY``, ``find(environ)`` and ``verdict(environ)``, pure functions of a
mapping, found by lying in this directory (third parties: an entry point of the group ``aiocoll.place``); the lowest
``PRIORITY`` that recognises its environment wins. Only ``secret.py`` touches anything but the mapping.

base.py      Place, and what the detectors share: reading whole numbers, naming what is missing
detect.py    detect() and verdicts()
secret.py    the job's secret: from a descriptor, a file or a variable
aiocoll.py   ranks started by ``aiocoll run`` or ``aiocoll.launch``
pmi.py       ranks of MPICH's mpiexec, ``srun --mpi=pmi2`` and Flux, which tell them where to meet
openmpi.py   ranks of Open MPI's mpiexec
slurm.py     tasks of a Slurm step; hostlist.py reads the names of its hosts
kubernetes.py  pods of an indexed job
torchrun.py  ranks started by torchrun, and everything that sets the same variables for each process
torch_variables.py  the four of them that ``env://`` reads
"""

from aiocoll.place.base import Place
from aiocoll.place.detect import Verdict, detect, verdicts
from aiocoll.place.secret import job_secret

__all__ = ["Place", "Verdict", "detect", "job_secret", "verdicts"]
