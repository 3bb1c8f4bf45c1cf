"""`ranks(size, body)`: body(comm) on so many ranks, a thread each, which meet over a file and talk over TCP."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiocoll.mpi import Intracomm
from aiocoll.sync import connect

Ranks = Callable[..., list[Any]]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    meetings = iter(range(1000))

    def run(size: int, body: Callable[[Intracomm], Any], **options: Any) -> list[Any]:
        url = f"file://{tmp_path}/meet{next(meetings)}"

        def rank(number: int) -> Any:
            settings = {"transport": "tcp", "timeout": 30, **options}
            with connect(url, rank=number, size=size, **settings) as group:
                return body(Intracomm(group))

        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            return [each.result() for each in [pool.submit(rank, number) for number in range(size)]]

    return run
