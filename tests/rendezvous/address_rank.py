"""One rank of test_case_addresses.py: joins, computes with the others, says under which addresses they know each other.

python address_rank.py RANK SIZE URL SECRET
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np

import aiocoll


async def main(rank: int, size: int, url: str, secret: str) -> None:
    async with aiocoll.connect(url, rank=rank, size=size, secret=secret or None, timeout=40) as group:
        for turn in range(3):
            total = sum(np.arange(1000.0) * (each + 1) + turn for each in range(size))
            assert ((await group.all_reduce(np.arange(1000.0) * (rank + 1) + turn)) == total).all()
        for peer in group._scope.others():
            await group.send(np.arange(5) + rank, peer)
        for peer in group._scope.others():
            assert ((await group.recv(peer)) == np.arange(5) + peer).all()
        transport: Any = group._endpoint.transport
        far = getattr(transport, "far", transport)
        addresses = [host for host, _ in far.world.addresses] if hasattr(far, "world") else []
        await group.barrier()
    print(json.dumps({"addresses": addresses, "sent": group.statistics()["bytes_sent"]}), flush=True)


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
