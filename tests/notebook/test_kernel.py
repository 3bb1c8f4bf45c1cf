"""Notebooks on a real kernel: awaiting and blocking in a cell, `launch`, and ranks that live on from cell to cell.

The rule: one notebook for most of it, since a kernel and its ranks take seconds to start; each test reads some cells.
"""

from __future__ import annotations

import re
from typing import Any

import psutil
import pytest

from tests.notebook.kernel import execute

CELLS = {
    # in the notebook's own process
    "await": """
import aiocoll, numpy as np
async with aiocoll.connect(rank=0, size=1) as group:
    total = await group.all_reduce(np.arange(3.0) + 1)
total""",
    "block": """
world = aiocoll.sync.connect(rank=0, size=1)
print(world.all_reduce(np.arange(3.0) + 2).tolist(), world.all_gather_object({"cell": 2}))
world""",
    "block again": "print(world.all_reduce(7)); world.close()",
    "facade": """
import aiocoll.distributed as dist, tempfile
dist.init_process_group("auto", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
x = np.arange(4.0); dist.all_reduce(x); dist.destroy_process_group(); x""",
    "op raises": """
with aiocoll.sync.connect(rank=0, size=1) as group:
    def fold(left, right): raise RuntimeError("no running event loop")
    print(group.all_reduce(1, aiocoll.op(fold)))
    raise RuntimeError("this event loop is already running")""",
    "launch": """
base = 10
def work(group, x):
    print("at", group.rank)
    return int(group.all_reduce(x * (group.rank + base)))
async def awork(group): return (await group.all_gather(np.array([group.rank * 2.0])))[1].tolist()
aiocoll.launch(work, 3, n=2), aiocoll.launch(awork, n=2)""",
    "launch interrupted": """
def wait(group):
    if group.rank == 0: print("INTER" + "RUPT")
    group.recv(1 - group.rank)
aiocoll.launch(wait, n=2, timeout=50)""",
    "alive": "'still here'",
    # with ranks
    "load": "%load_ext aiocoll",
    "status before": "%ranks",
    "first": """%%ranks -n 2
import numpy as np
print("hello from", rank, "of", size)
import sys; print("and a warning", file=sys.stderr)
x = np.arange(3.0) + 10 * rank
def double(y): return 2 * y""",
    "state": "%%ranks\ndouble(x)",
    "blocking": "%%ranks\ngroup.all_reduce(x)",
    "awaited": "%%ranks\nprint('no newline', end='')\ny = await group.all_gather(x)\ny[1 - rank].tolist()",
    "mixed": "%%ranks\nimport asyncio\nasync def later(): return await group.all_reduce(rank + 1)\n"
             "task = asyncio.create_task(later())\nawait asyncio.sleep(0)\nint(await task + await group.all_reduce(5))",
    "semicolon": "%%ranks\nrank;",
    "semicolon in a comment": "%%ranks\nrank + 1  # one more;\n",
    "semicolon before a comment": "%%ranks\nrank + 1;  # one more",
    "forked": "%%ranks\nimport os\nchild = os.fork()\nrank if child else 1 / 0",
    "child of the fork": "%%ranks\nos.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(group.all_reduce(1))",
    "output closed": "%%ranks\nimport sys\nkept, sys.stdout = sys.stdout, None\nrank",
    "output back": "%%ranks\nsys.stdout = kept\nprint('again')",
    "nobody": "%%ranks --ranks 0,2\n1",
    "some": "%%ranks --ranks 1\nprint('only one'); int(group.all_reduce(1))",
    "program": "%%ranks\nimport aiocoll\nasync def main(g): return await g.all_reduce(g.rank + 1)\n"
               "int(aiocoll.run(main))",
    "one fails": "%%ranks\nz = rank\nif rank == 1: 1 / 0\ngroup.all_reduce(z)",
    "after": "%%ranks\nint(await group.all_reduce(z + 1))",
    "all fail": "%%ranks\nmissing_name",
    "wrong": "%%ranks\nx[",
    "mismatch": "%%ranks\ngroup.all_reduce(np.zeros(2 + rank))",
    "interrupted": "%%ranks\nif rank == 0: print('INTER' + 'RUPT')\ngroup.recv(1 - rank, timeout=50)",
    "interrupted awaiting": "%%ranks\nif rank == 1: print('INTER' + 'RUPT')\n"
                            "await group.barrier() if rank else await asyncio.sleep(50)",
    "interrupted computing": "%%ranks\nprint('INTER' + 'RUPT') if rank == 0 else group.barrier(timeout=50)\n"
                             "while rank == 0: pass",
    "late": "%%ranks --timeout 0.5\nif rank == 1: group.recv(0, timeout=50)",
    "late everywhere": "%%ranks --timeout 0.5\ngroup.recv(1 - rank, timeout=50)",
    "state survives": "%%ranks\nfloat(double(x)[1]), z, int(group.all_reduce(z + 1)), group.name",
    "other number": "%%ranks -n 3\n1",
    "typo": "%%ranks --tiemout 3\n1",
    "status": "%ranks status",
    "sys.exit": "%%ranks\nimport sys\nsys.exit(3)",
    "many lines": "%%ranks\nfor i in range(300): print(rank, i, 'x' * 1000)",
    "dies": "%%ranks\nimport os\nif rank == 1: os._exit(7)\ngroup.barrier()",
    "status dead": "%ranks",
    "new": "%%ranks -n 3 --transport tcp\n'x' in globals(), size",
    "dies again": "%%ranks\nimport os\nif rank == 2: os._exit(7)\ngroup.barrier()",
    "as many": "%%ranks\ngroup.barrier()\n'os' in globals(), size, *group.statistics()['bytes_sent']",
    "restart": "%ranks restart -n 2",
    "status at once": "%ranks",
    "late at the start": "%%ranks --timeout 0.1\nimport time\nbegun = True\ntime.sleep(50)",
    "not ended by that": "%%ranks\n'begun' in globals(), size, int(group.all_reduce(1))",
    "new again": "%%ranks\nimport os\nsize, os.getpid()",
    "stop": "%ranks stop",
    "left to the kernel": "%%ranks -n 2\nimport os, multiprocessing\nos.getpid()",
}  # fmt: skip


@pytest.fixture(scope="module")
def notebook() -> dict[str, dict[str, Any]]:
    return execute(CELLS)


Notebook = dict[str, dict[str, Any]]


def values(cell: dict[str, Any]) -> list[str]:
    """What each rank's last expression was, in rank order."""
    assert not cell["error"], cell["shown"]
    return re.findall(r"^\[r\d+\] Out: (.*)$", cell["stdout"], re.MULTILINE)


def gone(pids: list[int]) -> bool:
    """Whether all of them end; their warden needs a moment."""
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(alive, timeout=20)[1]


# ---------------------------------------------------------------------------------------------- the notebook itself


def test_m3_await_and_the_blocking_api_in_a_notebooks_cells(notebook: Notebook) -> None:
    """The blocking API works where a loop runs, in a notebook too, and errors of the user's are not taken for its."""
    assert notebook["await"]["value"] == "array([1., 2., 3.])"
    assert notebook["block"]["stdout"] == "[2.0, 3.0, 4.0] [{'cell': 2}]\n" and not notebook["block"]["error"]
    assert notebook["block again"]["stdout"] == "7\n" and not notebook["block again"]["error"]
    assert notebook["facade"]["value"] == "array([0., 1., 2., 3.])"
    assert notebook["op raises"]["stdout"] == "1\n" and notebook["op raises"]["error"] == "RuntimeError"
    assert "already running" in notebook["op raises"]["shown"]


def test_launch_from_a_cell(notebook: Notebook) -> None:
    assert notebook["launch"]["value"] == "([63, 63], [[2.0], [2.0]])"
    assert sorted(notebook["launch"]["stdout"].splitlines()) == ["[r0] at 0", "[r1] at 1"]


def test_an_interrupt_ends_a_launch_and_not_the_kernel(notebook: Notebook) -> None:
    assert notebook["launch interrupted"]["error"] == "KeyboardInterrupt"
    assert notebook["alive"]["value"] == "'still here'"


# ---------------------------------------------------------------------------------------------- ranks


def test_output_stands_behind_its_rank_and_under_its_cell(notebook: Notebook) -> None:
    assert notebook["status before"]["stdout"].startswith("no ranks; a cell that begins with %%ranks -n 4")
    first = notebook["first"]
    assert sorted(first["stdout"].splitlines()) == ["[r0] hello from 0 of 2", "[r1] hello from 1 of 2"]
    assert sorted(first["stderr"].splitlines()) == ["[r0] and a warning", "[r1] and a warning"]
    lines = notebook["many lines"]["stdout"].splitlines()
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[r{rank}] ")]
        assert mine == [f"[r{rank}] {rank} {i} {'x' * 1000}" for i in range(300)]


def test_ranks_remember_and_show_their_last_value(notebook: Notebook) -> None:
    assert values(notebook["state"]) == ["array([0., 2., 4.])", "array([20., 22., 24.])"]
    assert values(notebook["blocking"]) == ["array([10., 12., 14.])"] * 2
    for silent in (notebook["semicolon"], notebook["semicolon before a comment"]):
        assert not silent["stdout"] and not silent["error"]
    assert values(notebook["semicolon in a comment"]) == ["1", "2"]
    assert notebook["some"]["stdout"] == "[r1] only one\n[r1] Out: 2\n"


def test_a_cell_that_awaits_has_an_async_group(notebook: Notebook) -> None:
    assert values(notebook["awaited"]) == ["[10.0, 11.0, 12.0]", "[0.0, 1.0, 2.0]"]
    assert notebook["awaited"]["stdout"].splitlines()[:2].count("[r0] no newline") == 1
    assert values(notebook["mixed"]) == ["13", "13"]


def test_a_cell_is_a_program_in_its_own_right(notebook: Notebook) -> None:
    assert values(notebook["program"]) == ["3", "3"]


def test_a_child_that_a_cell_forks_is_no_rank(notebook: Notebook) -> None:
    assert values(notebook["forked"]) == ["0", "1"]
    assert values(notebook["child of the fork"]) == ["(1, 2)"] * 2


def test_a_cell_may_take_its_output_away(notebook: Notebook) -> None:
    assert values(notebook["output closed"]) == ["0", "1"]
    assert sorted(notebook["output back"]["stdout"].splitlines()) == ["[r0] again", "[r1] again"]


def test_a_cell_that_fails_on_one_rank(notebook: Notebook) -> None:
    cell = notebook["one fails"]
    assert cell["error"] == "AiocollError"
    assert cell["shown"] == (
        "AiocollError: the cell failed on rank 1: ZeroDivisionError: division by zero (and on rank 0)"
    )
    assert re.search(r'^\[r1\]   File "<ranks cell \d+>", line 2, in <module>$', cell["stderr"], re.MULTILINE)
    assert "[r1]     if rank == 1: 1 / 0" in cell["stderr"]
    of_the_other = r"^\[r0\] .*GroupBrokenError: all_reduce .*rank 1 .*ZeroDivisionError"
    assert re.search(of_the_other, cell["stderr"], re.MULTILINE)
    assert values(notebook["after"]) == ["3", "3"]


def test_a_cell_that_fails_alike_everywhere_is_told_once(notebook: Notebook) -> None:
    stderr = notebook["all fail"]["stderr"].splitlines()
    assert [line for line in stderr if "NameError" in line] == ["[r0,r1] NameError: name 'missing_name' is not defined"]
    assert "SyntaxError: '[' was never closed" in notebook["wrong"]["shown"]
    assert notebook["mismatch"]["shown"].startswith("AiocollError: the cell failed on rank")
    assert "MismatchError" in notebook["mismatch"]["shown"]
    assert "SystemExit: 3" in notebook["sys.exit"]["shown"]


@pytest.mark.parametrize("how", ["interrupted", "interrupted awaiting", "interrupted computing"])
def test_an_interrupt_ends_the_cell_and_not_the_ranks(notebook: Notebook, how: str) -> None:
    assert notebook[how]["error"] == "KeyboardInterrupt"
    assert values(notebook["state survives"]) == ["(2.0, 0, 3, 'world')", "(22.0, 1, 3, 'world')"]


def test_a_cell_that_takes_too_long(notebook: Notebook) -> None:
    assert notebook["late"]["shown"] == (
        "CollectiveTimeoutError: rank 1 had not finished the cell after 0.5 s and was interrupted"
    )
    assert notebook["late everywhere"]["shown"] == (
        "CollectiveTimeoutError: ranks 0 and 1 had not finished the cell after 0.5 s and were interrupted"
    )


def test_what_is_typed_wrong_is_said_in_a_line(notebook: Notebook) -> None:
    assert "2 ranks are running, and keep their number" in notebook["other number"]["shown"]
    assert notebook["nobody"]["shown"] == "UsageError: %%ranks: --ranks 2: the ranks are 0 to 1"
    assert "unrecognized arguments: --tiemout 3; usage: %%ranks [-n RANKS]" in notebook["typo"]["shown"]
    assert not notebook["typo"]["shown"].count("\n")


def test_a_rank_that_dies_is_named_and_the_next_cell_begins_anew(notebook: Notebook) -> None:
    assert re.match(r"AiocollError: rank 1 \(pid \d+ on .*\) failed first: exited with code 7; all ranks have ended, "
                    "and with them what they held", notebook["dies"]["shown"])  # fmt: skip
    assert notebook["status dead"]["stdout"].startswith("no ranks;")
    assert values(notebook["new"]) == ["(False, 3)"] * 3


def test_ranks_that_begin_anew_are_as_many_as_before_and_talk_as_before(notebook: Notebook) -> None:
    assert "exited with code 7" in notebook["dies again"]["shown"]
    assert values(notebook["as many"]) == ["(False, 3, 'tcp')"] * 3


def test_an_interrupt_waits_for_ranks_that_still_start(notebook: Notebook) -> None:
    assert re.search(
        r"had not finished the cell after 0\.1 s and (was|were) interrupted", notebook["late at the start"]["shown"]
    )
    assert [each[-5:] for each in values(notebook["not ended by that"])] == ["2, 2)", "2, 2)"]


def test_the_line_magic(notebook: Notebook) -> None:
    assert notebook["status"]["stdout"].startswith("2 ranks, ")
    pids = [int(pid) for pid in re.findall(r"\d: (\d+)", notebook["status"]["stdout"])]
    assert len(pids) == 2 and gone(pids)
    assert re.search(r": 0: \d+, 1: \d+$", notebook["status at once"]["stdout"])
    assert notebook["restart"]["stdout"] == "2 new ranks\n" and notebook["stop"]["stdout"] == "2 ranks have ended\n"
    assert gone([int(value.strip("()").split(", ")[1]) for value in values(notebook["new again"])])


def test_ranks_end_with_the_kernel(notebook: Notebook) -> None:
    pids = [int(value) for value in values(notebook["left to the kernel"])]
    assert len(pids) == 2 and gone(pids)


def test_ranks_end_with_a_kernel_that_is_killed() -> None:
    cells = {"load": "%load_ext aiocoll", "start": "%%ranks -n 2\nimport os\nos.getpid()"}
    pids = [int(value) for value in values(execute(cells, kill=True)["start"])]
    assert len(pids) == 2 and gone(pids)
