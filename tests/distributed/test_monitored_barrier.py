"""The documented monitored_barrier: RuntimeError on all ranks or none, in the documented words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.processes import spawn


@pytest.mark.slow
def test_j4_in_the_documented_words(tmp_path: Path) -> None:
    body = f"""
    import pathlib, time
    from datetime import timedelta
    from aiocoll.errors import CollectiveTimeoutError
    dist.init_process_group('tcp', 'file://{tmp_path}/meet', rank=rank, world_size=size)
    dist.monitored_barrier()
    dist.monitored_barrier(dist.group.WORLD, timedelta(seconds=30), wait_all_ranks=True)
    part = dist.new_group([0, 2])
    assert dist.monitored_barrier(part) is None  # on rank 1, which is none of it, too
    answer = None
    if rank != 1:
        try:
            dist.monitored_barrier(timeout=0.5, wait_all_ranks=True)
        except RuntimeError as error:
            answer = [type(error).__name__, isinstance(error, TimeoutError), error.missing, str(error)]
        pathlib.Path("{tmp_path}/late" + str(rank)).touch()
    else:
        while not all(pathlib.Path("{tmp_path}/late" + str(each)).exists() for each in (0, 2)):
            time.sleep(0.01)
        try:
            dist.monitored_barrier()
        except RuntimeError as error:
            answer = [type(error).__name__]
    dist.destroy_process_group()
    """
    first, late, third = spawn(3, body)
    assert late == ["GroupBrokenError"]
    for rank, answer in ((0, first), (2, third)):
        assert answer[:3] == ["CollectiveTimeoutError", True, [1]]
        assert f"[Rank {rank}] Rank 1 failed to pass monitoredBarrier in " in answer[3]
