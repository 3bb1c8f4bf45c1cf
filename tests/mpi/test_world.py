"""COMM_WORLD as programs meet it: alone, under the runner, finalized, aborted, started by somebody else's launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, program: str, *start: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, *(start or ("-W", "error")), str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)


def test_alone_a_program_is_a_world_of_one(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        from aiocoll import mpi as MPI
        from aiocoll.mpi import MPI as again

        assert again is MPI and repr(MPI.COMM_WORLD) == "MPI.COMM_WORLD (not joined)" and MPI.COMM_WORLD
        assert MPI.Is_initialized() and not MPI.Is_finalized() and MPI.Is_thread_main()
        comm = MPI.COMM_WORLD
        assert (comm.rank, comm.size, comm.Get_name()) == (0, 1, "MPI_COMM_WORLD")
        assert comm.allreduce(5) == 5 and comm.sendrecv("x", 0, source=0) == "x"
        half, twin = comm.Split(0), comm.Dup()  # never freed
        assert half.allgather(1) == [1]
        del half
        assert MPI.COMM_SELF.allreduce(2) == 2 and repr(MPI.COMM_SELF).startswith("Alone(MPI_COMM_SELF, rank 0 of 1")
        assert comm != MPI.COMM_SELF and comm == MPI.COMM_WORLD and not MPI.COMM_NULL
        assert MPI.Query_thread() == MPI.THREAD_MULTIPLE and MPI.Get_processor_name() and MPI.Wtick() < 1
        assert MPI.Get_version() == (MPI.VERSION, MPI.SUBVERSION) and MPI.Get_library_version().startswith("aiocoll")
        assert MPI.get_vendor()[0] == "aiocoll" and MPI.Wtime() <= MPI.Wtime()
        try:
            MPI.Init()
        except MPI.Exception as error:
            assert "already" in str(error)
        MPI.Finalize()
        MPI.Finalize()
        assert MPI.Is_finalized()
        try:
            comm.barrier()
        except MPI.Exception as error:
            assert "finalized" in str(error) and isinstance(error, RuntimeError)
            print("good")
        """,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("good\n", "", 0)


def test_importing_it_joins_nothing_and_a_program_need_not_finalize(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        import sys
        from aiocoll.mpi import MPI
        if MPI.COMM_WORLD.rank:
            MPI.COMM_WORLD.send([1, 2], 0)
        else:
            print(MPI.COMM_WORLD.recv(), MPI.COMM_SELF.size, MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).size)
        if MPI.COMM_WORLD.rank:
            MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        """,
        "-m", "aiocoll", "run", "-n", "2",
    )  # fmt: skip
    assert (ended.stdout, ended.returncode) == ("[r0] [1, 2] 1 2\n", 0), ended.stderr


def test_abort_ends_the_job_with_its_code(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        from aiocoll.mpi import MPI
        comm = MPI.COMM_WORLD
        print("before", flush=True)
        try:
            if comm.rank == 1:
                comm.Abort(9)
            comm.Barrier()
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_PROC_FAILED
            raise
        finally:
            if comm.rank == 1:
                print("never printed")
        """,
        "-m", "aiocoll", "run", "-n", "3",
    )  # fmt: skip
    assert ended.returncode == 9 and "rank 1 of 3 called Abort(9)" in ended.stderr
    assert "never printed" not in ended.stdout and "rank 1 exited with code 9" in ended.stderr.splitlines()[-1]


def test_a_rank_that_fails_tells_the_others(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        from aiocoll.mpi import MPI
        comm = MPI.COMM_WORLD
        if comm.rank == 0:
            raise KeyError("no such thing")
        try:
            comm.recv(source=0)
        except MPI.Exception as error:
            print(type(error).__name__, "no such thing" in str(error))
        """,
        "-m", "aiocoll", "run", "-n", "2",
    )  # fmt: skip
    assert ended.returncode == 1 and ended.stdout == "[r1] GroupBrokenError True\n", ended.stdout + ended.stderr
    assert "KeyError: 'no such thing'" in ended.stderr


def test_one_of_several_that_cannot_find_the_others_says_how_to_start_them(tmp_path: Path) -> None:
    program = "from aiocoll.mpi import MPI\nMPI.COMM_WORLD.Get_rank()\n"
    ended = run(tmp_path, program, MV2_COMM_WORLD_SIZE="4")
    assert ended.returncode == 1
    assert "one of 4 that mpiexec has started (MV2_COMM_WORLD_SIZE)" in ended.stderr
    assert "aiocoll run -n 4 program.py" in ended.stderr
