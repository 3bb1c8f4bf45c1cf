"""The first program that everybody writes (M7), and the threads of numerical libraries (N11)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import aiocoll
from aiocoll.cpus import usable_cpus
from aiocoll.runner.plan import BLAS_VARIABLES, base_environment

FIRST = """
import numpy as np
import aiocoll.distributed as dist
dist.init_process_group("auto", "env://")
x = np.arange(1_000_000, dtype=np.float32) % 7 + dist.get_rank()
for step in range(10):
    dist.all_reduce(x)
    x /= dist.get_world_size()
print(x[:3], float(x.sum()), flush=True)
dist.destroy_process_group()
"""
FIRST_ASYNC = """
import numpy as np
import aiocoll
async def main(group):
    x = np.arange(1_000_000, dtype=np.float32) % 7 + group.rank
    for step in range(10):
        await group.all_reduce(x, out=x)
        x /= group.size
    print(x[:3], float(x.sum()), flush=True)
aiocoll.run(main)
"""


@pytest.mark.parametrize("program", [FIRST, FIRST_ASYNC])
def test_m7_ten_reductions_in_place_on_one_box(runner: Any, program: str) -> None:
    """Two ranks, a million floats, ten calls in a row: no sleep, no hang, the right numbers."""
    done = runner.run("-n", 2, runner.script(program))
    assert done.code == 0 and not done.err, done.err
    assert sorted(done.out.splitlines()) == [f"[r{rank}] [0.5 1.5 2.5] 3499997.0" for rank in range(2)]


def test_m7_the_same_by_launch() -> None:
    def program(group: Any) -> float:
        import numpy as np

        x = np.arange(1_000_000, dtype=np.float32) % 7 + group.rank
        for _ in range(10):
            group.all_reduce(x, out=x)
            x /= group.size
        return float(x.sum())

    assert aiocoll.launch(program, n=2) == [3499997.0] * 2


@pytest.mark.parametrize("preset", [{}, {"OMP_NUM_THREADS": "3"}, {"MKL_NUM_THREADS": "2"}], ids=str)
def test_n11_threads_are_shared_out_and_what_the_user_set_stays(runner: Any, preset: dict[str, str]) -> None:
    """CPUs divided by ranks, for each library that has a variable; a preset one wins; -v says so in one line."""
    script = runner.script(f"""
        import json, os
        print(json.dumps({{name: os.environ.get(name) for name in {BLAS_VARIABLES!r}}}))
    """)
    done = runner.run("-v", "-n", 2, script, env=preset)
    fair = str(max(1, usable_cpus() // 2))
    for line in done.out.splitlines():
        found = json.loads(line.partition("] ")[2])
        assert found == ({name: preset.get(name) for name in BLAS_VARIABLES} if "OMP_NUM_THREADS" in preset
                         else {name: preset.get(name, fair) for name in BLAS_VARIABLES})  # fmt: skip
    assert len(done.out.splitlines()) == 2 and done.code == 0
    assert [line for line in done.err.splitlines() if "BLAS" in line] == [done.err.splitlines()[0]]


def test_n11_many_ranks_get_a_thread_each() -> None:
    assert {base_environment({}, {}, 10_000)[name] for name in BLAS_VARIABLES} == {"1"}
