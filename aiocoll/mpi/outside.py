"""What mpi4py has and this room has not, each with what to do instead.

The rule: a name that a program could look for is here, so that it gets a pointer and not a riddle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_WINDOWS = (
    "memory of other ranks is not written behind their backs; send messages, or share a read-only array with "
    "group.empty() of aiocoll.sync. Programs that need windows need mpi4py"
)
_FILES = "write a file per rank, or gather() to one rank that writes; parallel files need mpi4py"
_SPAWN = "start ranks with `aiocoll run`, or from a program with aiocoll.launch(); a running job grows by group.grow()"
_INTER = "make one communicator of all ranks and Split() it; communicators between two groups need mpi4py"
_PERSISTENT = "call Isend/Irecv each time: calls that come again are made at once anyway"
_SYNCHRONOUS = "use Send, and have the receiver answer when the sender must know that its message has been taken"
_GRAPHS = "keep the list of neighbours yourself and use Isend/Irecv with them, or alltoall with empty parts"
_NEIGHBOURS = "use Sendrecv with the ranks that Shift() gives"
_TYPES = "send a structured array (np.dtype with fields), or copy what is to travel into a contiguous one"
_ATTRIBUTES = "keep what belongs to a communicator in a variable or a dict of your own"
_HANDLES = "there is no C or Fortran handle behind these objects"
_PORTS = "use aiocoll.connect('tcp://host:port', rank=…, size=…), or the runner's --rdzv"
_PICKLE = "objects travel as plain data; set AIOCOLL_ALLOW_PICKLE=1 to admit whatever pickle can carry"
_ERRORS = "errors are always exceptions here (mpi4py's default, too); catch MPI.Exception"
_MEMORY = "use a NumPy array; its memory is taken as it is"
_RECOVERY = "use the group behind: comm.group_of_aiocoll.shrink() and agree()"


def _all(names: str, instead: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), instead)


OUTSIDE: Final[Mapping[str, str]] = {
    **_all("Win WIN_NULL LOCK_SHARED LOCK_EXCLUSIVE MODE_NOCHECK REPLACE NO_OP WIN_BASE WIN_SIZE", _WINDOWS),
    **_all("File FILE_NULL MODE_RDONLY MODE_WRONLY MODE_RDWR MODE_CREATE MODE_EXCL MODE_APPEND SEEK_SET", _FILES),
    **_all("Spawn Spawn_multiple Get_parent Disconnect UNIVERSE_SIZE APPNUM", _SPAWN),
    **_all("Intercomm Create_intercomm Merge Join Get_remote_size Get_remote_group", _INTER),
    **_all("Send_init Recv_init Bsend_init Ssend_init Rsend_init Prequest Start Startall Psend_init", _PERSISTENT),
    **_all("Allreduce_init Bcast_init Barrier_init Gather_init Scatter_init Alltoall_init", _PERSISTENT),
    **_all("Ssend ssend Issend issend", _SYNCHRONOUS),
    **_all("Create_graph Create_dist_graph Create_dist_graph_adjacent Graphcomm Distgraphcomm", _GRAPHS),
    **_all("Neighbor_allgather Neighbor_alltoall neighbor_allgather neighbor_alltoall Neighbor_alltoallv", _NEIGHBOURS),
    **_all("Create_struct Create_darray Create_hindexed Create_hvector Alltoallw Ialltoallw Pack Unpack", _TYPES),
    **_all("Create_keyval Set_attr Delete_attr Free_keyval Get_info Set_info", _ATTRIBUTES),
    **_all("handle py2f f2py fromhandle _addressof _handleof _sizeof Get_address BOTTOM", _HANDLES),
    **_all("Open_port Close_port Publish_name Lookup_name Accept Connect", _PORTS),
    **_all("pickle Pickle", _PICKLE),
    **_all("Errhandler Call_errhandler Create_errhandler Add_error_class ERRORS_ABORT", _ERRORS),
    **_all("Alloc_mem Free_mem memory buffer", _MEMORY),
    **_all("Shrink Agree Revoke Is_revoked Get_failed Ack_failed Ishrink Iagree", _RECOVERY),
    **_all("Info INFO_ENV Session Grequest Pcontrol Register_datarep", "this has no meaning without an MPI library"),
}
