"""env://: MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE say where and who; the rule: what is missing is named.

Under the runner the same variables stand for the runner's own store, unless the script has put another address there.
"""

from __future__ import annotations

from dataclasses import replace

from aiocoll.errors import UsageError
from aiocoll.place.torch_variables import TorchVariables, read
from aiocoll.rendezvous.hosts import outward
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.rendezvous.request import Reached, Request
from aiocoll.rendezvous.schemes import tcp
from aiocoll.rendezvous.url import check_rank, check_size, parse, tcp_url


async def meet(request: Request) -> Meeting:
    """As ``tcp://``, with what the variables say where the caller and the URL say nothing."""
    said = read(request.environ)
    size = request.size if request.size is not None else check_size(said.size, what="WORLD_SIZE")
    if size is None:
        raise _missing("world_size", "WORLD_SIZE", "size=")
    rank = request.rank if request.rank is not None else check_rank(said.rank, size, what="RANK")
    if rank is None:
        raise _missing("rank", "RANK", "rank=")
    return await tcp.meet(_redirect(replace(request, rank=check_rank(rank, size), size=size), said))


async def reach(request: Request) -> Reached:
    """As ``tcp://``, at the address that the variables name."""
    return await tcp.reach(_redirect(request, read(request.environ)))


def _redirect(request: Request, said: TorchVariables) -> Request:
    if request.place.store_is_hosted and not said.moved:
        return replace(request, url=parse(request.place.init_method), store_is_hosted=True)
    host = said.host
    if not host and request.rank == 0:
        host = outward() if request.secret else "127.0.0.1"  # as documented: rank 0 need not be told its own address
    if not host or not said.port:
        name = "MASTER_PORT" if host else "MASTER_ADDR"
        raise UsageError(
            f"env://: failed to read the {name} environmental variable; maybe you forgot to set it? (environment "
            f"variable {name} expected, but not set): it says where rank 0 serves the store"
        )
    return replace(request, url=parse(tcp_url(host, said.port)), store_is_hosted=False)


def _missing(what: str, variable: str, argument: str) -> UsageError:
    return UsageError(
        f"env://: {what} is not set but it is required for env:// init method (environment variable {variable} "
        f"expected, but not set): set {variable}, give {argument}, or start the ranks with `aiocoll run`"
    )
