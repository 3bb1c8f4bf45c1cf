"""What mpi4py has and this room has not, each with what to do instead.

The rule: a name that a program could look for is here, so that it gets a pointer and not a riddle.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

_WINDOWS = (
    "memory of other ranks is not written behind their backs; send messages, or share a read-only array with "
    "group.empty() of aiocoll.sync. Programs that need windows need mpi4py"
)
_FILES = "write a file per rank, or gather() to one rank that writes; parallel files need mpi4py"
_SPAWN = "start ranks with `aiocoll run`, or from a program with aiocoll.launch(); a running job grows by group.grow()"
_INTER = "make one communicator of all ranks and Split() it; communicators between two groups need mpi4py"
_PERSISTENT = "call Iallreduce and its kin each time: calls that come again are made at once anyway"
_PARTITIONED = "send a message per part, each with a tag of its own"
_GRAPHS = "keep the list of neighbours yourself and use Isend/Irecv with them, or alltoall with empty parts"
_NEIGHBOURS = "use Sendrecv with the ranks that Shift() gives"
_TYPES = "send a structured array (np.dtype with fields), or copy what is to travel into a contiguous one"
_ATTRIBUTES = "keep what belongs to a communicator in a variable or a dict of your own"
_HANDLES = "there is no C or Fortran handle behind these objects"
_PORTS = "use aiocoll.connect('tcp://host:port', rank=…, size=…), or the runner's --rdzv"
_PICKLE = "objects travel as plain data; set AIOCOLL_ALLOW_PICKLE=1 to admit whatever pickle can carry"
_ERRORS = "errors are always exceptions here (mpi4py's default, too); catch MPI.Exception"
_MEMORY = "use a NumPy array; its memory is taken as it is"
_BY_HAND = "wait() or test() the requests one by one; get_status() looks at one without ending it"
_MEANINGLESS = "this has no meaning without an MPI library behind it"
_RECOVERY = "use the group behind: comm.group_of_aiocoll.shrink() and agree()"


def instead_of(name: str) -> str | None:
    """What to do instead of using ``name``; None if mpi4py has no such name either."""
    found = OUTSIDE.get(name)
    if found is None:
        found = next((text for pattern, text in PATTERNS if fnmatchcase(name, pattern)), None)
    return found


def _all(names: str, instead: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), instead)


OUTSIDE: Final[Mapping[str, str]] = {
    **_all("Win WIN_NULL LOCK_SHARED LOCK_EXCLUSIVE MODE_NOCHECK REPLACE NO_OP WIN_BASE WIN_SIZE", _WINDOWS),
    **_all("File FILE_NULL MODE_RDONLY MODE_WRONLY MODE_RDWR MODE_CREATE MODE_EXCL MODE_APPEND SEEK_SET", _FILES),
    **_all("Spawn Spawn_multiple Get_parent Disconnect UNIVERSE_SIZE APPNUM", _SPAWN),
    **_all("Intercomm Create_intercomm Merge Join Get_remote_size Get_remote_group", _INTER),
    **_all("Psend_init Precv_init Pready Pready_range Pready_list Parrived", _PARTITIONED),
    **_all("Allreduce_init Bcast_init Barrier_init Gather_init Scatter_init Alltoall_init", _PERSISTENT),
    **_all("Create_graph Create_dist_graph Create_dist_graph_adjacent Graphcomm Distgraphcomm", _GRAPHS),
    **_all("Neighbor_allgather Neighbor_alltoall neighbor_allgather neighbor_alltoall Neighbor_alltoallv", _NEIGHBOURS),
    **_all("Create_struct Create_darray Create_hindexed Create_hvector Create_hindexed_block Pack Unpack", _TYPES),
    **_all("Create_keyval Get_attr Set_attr Delete_attr Free_keyval Get_info Set_info", _ATTRIBUTES),
    **_all("handle py2f f2py fromhandle _addressof _handleof _sizeof Get_address BOTTOM", _HANDLES),
    **_all("Open_port Close_port Publish_name Lookup_name Accept Connect", _PORTS),
    **_all("pickle Pickle", _PICKLE),
    **_all("Errhandler Call_errhandler Create_errhandler Add_error_class ERRORS_ABORT", _ERRORS),
    **_all("Alloc_mem Free_mem memory buffer", _MEMORY),
    **_all("Shrink Agree Revoke Is_revoked Get_failed Ack_failed Ishrink Iagree", _RECOVERY),
    **_all("Idup Idup_with_info", "use Dup, which takes no longer than a small Allreduce"),
    **_all("Alltoallw Ialltoallw", _TYPES),
    **_all("Info INFO_ENV Session Grequest Pcontrol Register_datarep info", _MEANINGLESS),
    **_all("SESSION_NULL GROUP_NULL Create_from_group Create_from_session_pset", _MEANINGLESS),
    **_all("Get_hw_resource_info IO WTIME_IS_GLOBAL LASTUSEDCODE BottomType InPlaceType", _MEANINGLESS),
    **_all("BufferAutomaticType BUFFER_AUTOMATIC Flush_buffer Iflush_buffer", _MEANINGLESS),
    **_all("GRAPH DIST_GRAPH Graph_map Cart_map UNWEIGHTED WEIGHTS_EMPTY Topocomm", _GRAPHS),
    **_all("degrees indegree outdegree inoutedges inedges outedges", _GRAPHS),
    **_all("DISPLACEMENT_CURRENT DISP_CUR SEEK_CUR SEEK_END", _FILES),
    **_all("KEYVAL_INVALID", _ATTRIBUTES),
    **_all("ERRHANDLER_NULL Get_errhandler", _ERRORS),
    **_all("Unpublish_name", _PORTS),
    **_all("toint fromint tomemory Aint_add Aint_diff", _HANDLES),
    **_all("Set_elements decode envelope contents combiner Match_size Get_envelope Get_contents", _TYPES),
    **_all("BFLOAT16_T LOGICAL16 INTEGER16 REAL16 COMPLEX4 COMPLEX32", _TYPES),
}

PATTERNS: Final[tuple[tuple[str, str], ...]] = (
    ("*_init", _PERSISTENT),
    ("*eighbor_*", _NEIGHBOURS),
    ("[gG]et_status_*", _BY_HAND),
    ("WIN_*", _WINDOWS),
    ("MODE_*", _FILES),
    ("ERR_*", _ERRORS),
    ("Add_error_*", _ERRORS),
    ("Remove_error_*", _ERRORS),
    ("COMBINER_*", _TYPES),
    ("TYPECLASS_*", _TYPES),
    ("DISTRIBUTE_*", _TYPES),
    ("Create_f90_*", _TYPES),
    ("*ack_external*", _TYPES),
    ("Pack_size", _TYPES),
    ("Get_value_index", _TYPES),
    ("COMM_TYPE_*", "only COMM_TYPE_SHARED is known: the ranks of one host"),
    ("F_*", _HANDLES),
    ("MAX_*", _MEANINGLESS),
    ("Get_abi_*", _MEANINGLESS),
)
"""The same for whole families of names."""
