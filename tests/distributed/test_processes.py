"""The documented API in real processes: interrupts, forks, programs that end in the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.processes import spawn


@pytest.fixture
def join(tmp_path: Path) -> str:
    """The line that joins. By a file: a free port may be somebody else's by the time it is used."""
    return f"dist.init_process_group('tcp', 'file://{tmp_path}/meet', rank=rank, world_size=size)"


@pytest.mark.slow
def test_ctrl_c_in_a_blocked_call_and_what_the_others_learn(join: str, tmp_path: Path) -> None:
    body = f"""
    import pathlib
    import signal, threading, time
    from aiocoll.errors import GroupBrokenError
    {join}
    x = np.arange(3.0) + rank
    dist.all_reduce(x)
    if rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        before = time.monotonic()
        try:
            dist.all_reduce(x)
        except KeyboardInterrupt:
            answer = [time.monotonic() - before]
        pathlib.Path("{tmp_path}/interrupted").touch()
        dist.isend(x, 1)
    else:
        while not pathlib.Path("{tmp_path}/interrupted").exists():
            time.sleep(0.01)
        try:
            dist.all_reduce(x)
        except GroupBrokenError as error:
            answer = [str(error)]
    dist.destroy_process_group()
    """
    (waited,), (words,) = spawn(2, body)
    assert waited < 5
    assert "rank 0" in words, words


def test_a_forked_child_ends_as_programs_end_and_the_parent_goes_on(join: str) -> None:
    body = f"""
    {join}
    x = np.arange(3.0) + rank
    request = dist.all_reduce(x, async_op=True)
    request.wait()
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        words = []
        for use in (lambda: dist.all_reduce(x), lambda: dist.isend(x, 0), dist.barrier):
            try:
                use()
            except ValueError as error:
                words.append("process" in str(error) and str(os.getppid()) in str(error))
        sys.exit(0 if words == [True] * 3 else 3)  # with all the exit handlers that the parent registered
    _, status = os.waitpid(child, 0)
    for _ in range(3):
        dist.all_reduce(x)
    answer = [os.waitstatus_to_exitcode(status), x.tolist()]
    """
    assert spawn(2, body) == [[0, [8.0, 24.0, 40.0]]] * 2


def test_a_forked_child_may_join_a_world_of_its_own(join: str, tmp_path: Path) -> None:
    body = f"""
    {join}
    warnings.simplefilter("ignore")
    child = os.fork()
    if child == 0:
        dist.init_process_group('tcp', 'file://{tmp_path}/other', rank=1 - rank, world_size=size)
        x = np.arange(3.0) + rank
        dist.all_reduce(x)
        answer = [dist.get_rank(), *x.tolist()]
        dist.destroy_process_group()
        sys.exit(0 if answer == [1 - rank, 1, 3, 5] else 3)
    _, status = os.waitpid(child, 0)
    dist.barrier()
    answer = os.waitstatus_to_exitcode(status)
    """
    assert spawn(2, body) == [0, 0]


def test_a_fork_before_init_has_a_world_of_its_own(join: str) -> None:
    body = f"""
    child = os.fork()
    if child == 0:
        {join}
        x = np.arange(3.0) + rank
        dist.all_reduce(x)
        os._exit(int(x[2]))
    _, status = os.waitpid(child, 0)
    answer = os.waitstatus_to_exitcode(status)
    """
    assert spawn(2, body) == [5, 5]


def test_a_script_that_never_destroys_ends_quietly_with_what_it_sent(join: str) -> None:
    body = f"""
    {join}
    x = np.zeros(1000)
    if rank == 0:
        dist.isend(np.arange(1000.0), 1)
    else:
        dist.recv(x, 0)
    answer = x.sum()
    """
    assert spawn(2, body) == [0, 499500]


def test_use_from_many_threads(join: str) -> None:
    body = f"""
    import concurrent.futures
    {join}
    other = 1 - rank
    def talk(tag):
        buffer = np.zeros(4)
        for number in range(20):
            if rank == 0:
                dist.send(np.arange(4.0) + number + tag, other, tag=tag)
                dist.recv(buffer, other, tag=tag)
            else:
                dist.recv(buffer, other, tag=tag)
                dist.send(buffer + 1, other, tag=tag)
        return float(buffer[3])
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answer = list(pool.map(talk, range(5)))
    dist.destroy_process_group()
    """
    assert spawn(2, body) == [[23.0, 24.0, 25.0, 26.0, 27.0], [22.0, 23.0, 24.0, 25.0, 26.0]]


def test_new_groups_by_the_hundred_cost_nothing(join: str) -> None:
    body = f"""
    {join}
    def once():
        handle = dist.new_group([0, 1])
        x = np.arange(2.0) + rank
        dist.all_reduce(x, group=handle)
        dist.destroy_process_group(handle)
        return x[1]
    once()
    before = len(os.listdir("/proc/self/fd"))
    totals = {{float(once()) for _ in range(300)}}
    answer = [len(os.listdir("/proc/self/fd")) - before, sorted(totals)]
    dist.barrier()  # the link ends when the other rank leaves
    dist.destroy_process_group()
    """
    assert spawn(2, body) == [[0, [3.0]]] * 2


def test_a_rank_that_ends_in_the_middle_is_named_to_those_who_wait_for_it(join: str) -> None:
    body = f"""
    import time
    from aiocoll.errors import AiocollError
    {join}
    x = np.arange(3.0)
    dist.all_reduce(x)
    if rank == 1:
        print("null")
        sys.exit(0)  # with the exit handler that leaves the world
    before = time.monotonic()
    try:
        dist.all_reduce(x)
    except AiocollError as error:
        answer = [time.monotonic() - before, str(error)]
    """
    (waited, words), _ = spawn(2, body)
    assert waited < 10 and "rank 1" in words, (waited, words)


def test_what_the_root_refuses_is_refused_once_and_the_next_call_is_another(join: str) -> None:
    body = f"""
    from aiocoll.errors import UsageError
    {join}
    bad = rank == 0
    calls = {{
        "broadcast": lambda: dist.broadcast("no tensor" if bad else np.ones(2), 0),
        "broadcast, by a receiver": lambda: dist.broadcast("no tensor" if bad else np.ones(200_000), 1),
        "reduce": lambda: dist.reduce("no tensor" if bad else np.ones(2), 0),
        "gather": lambda: dist.gather(np.ones(2), dst=0),
        "scatter": lambda: dist.scatter(np.ones(2), src=0),
    }}
    refused = 0
    for name, make in calls.items():
        try:
            make()
        except UsageError as error:
            assert isinstance(error, RuntimeError | TypeError), error
            assert "refused this call: rank" not in str(error), error
            refused += 1
        x = np.ones(3)
        dist.all_reduce(x)
        assert (x == size).all(), name
    answer = refused
    dist.destroy_process_group()
    """
    assert spawn(3, body)[0] == 5


def test_a_message_that_does_not_fit_says_so_in_the_documented_words(join: str) -> None:
    body = f"""
    from aiocoll.errors import MismatchError
    {join}
    answer = ""
    if rank == 0:
        dist.isend(np.ones(5), 1)
        dist.send(np.ones(3), 1)
    else:
        x = np.zeros(3)
        try:
            dist.recv(x, 0)
        except MismatchError as error:
            answer = str(error)
        dist.recv(x, 0)
        assert (x == 1).all()
    dist.destroy_process_group()
    """
    assert "tensor sizes do not match" in spawn(2, body)[1]


def test_children_of_multiprocessing_leave_when_they_end(tmp_path: Path) -> None:
    body = f"""
    import threading
    from multiprocessing import get_context

    def run(rank, size):
        dist.init_process_group("tcp", "file://{tmp_path}/meet", rank=rank, world_size=size)
        if rank == 0:
            threading.Event().wait(0.5)
            x = np.zeros(3)
            dist.gather(x, gather_list=[x, np.zeros(3)])
        else:
            dist.gather(np.ones(3), dst=0)

    children = [get_context("fork").Process(target=run, args=(each, 2)) for each in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    answer = [child.exitcode for child in children]
    """
    assert spawn(1, body) == [[0, 0]]
