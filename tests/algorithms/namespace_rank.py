"""One rank of test_namespaces.py: joins, checks every collective that has a form for several hosts, says what it saw.

python namespace_rank.py RANK SIZE URL SECRET
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys

import aiocoll
from tests.algorithms.test_hosts import program


async def main(rank: int, size: int, url: str, secret: str) -> None:
    async with aiocoll.connect(url, rank=rank, size=size, secret=secret, timeout=40) as group:
        results = await program(group)
        seen = {
            "islands": group._islands,
            "shared": group._shared,
            "sent": group.statistics()["bytes_sent"],
            "chosen": {name: group._chosen(name, 1 << 24).name for name in ("broadcast", "all_gather")},
            "bits": {name: hashlib.sha256(value).hexdigest() for name, value in results.items()},
        }
    print(json.dumps(seen), flush=True)


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
