"""The store in a file: many processes, killed writers, dead runs, and paths that cannot work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiocoll.errors import RendezvousError, RendezvousTimeoutError
from aiocoll.store import FileStore, file, users


def python(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


COUNT = """
    import asyncio, sys
    from aiocoll.store import FileStore
    async def main():
        store = FileStore(sys.argv[1])
        for _ in range(50):
            await store.add("count")
            await store.queue_push("items", b"x")
        await store.wait(["go"], timeout=60)
        await store.close()
    asyncio.run(main())
"""

USE_AND_HANG = """
    import asyncio, sys
    from aiocoll.store import FileStore
    async def main():
        store = FileStore(sys.argv[1])
        await store.set("old", b"of a run that was killed")
        print("ready", flush=True)
        await store.get("never", timeout=600)
    asyncio.run(main())
"""


async def killed_run(path: Path) -> None:
    process = python(USE_AND_HANG, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()


async def test_many_processes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    processes = [python(COUNT, path) for _ in range(3)]
    store = FileStore(path)
    async with asyncio.timeout(60):
        while await store.queue_len("items") < 150:  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(0.02)
    assert await store.get("count") == b"150"
    assert len(await store.users()) == 4
    await store.set("go", b"")
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert len(await store.users()) == 1
    await store.remove()
    assert not path.exists()


async def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    await killed_run(path)
    store = FileStore(path)
    assert await store.list() == []
    await store.set("new", b"")
    other = FileStore(path)
    assert await other.list() == ["new"]  # the first of the new run lives, so the second reclaims nothing
    await other.close()
    await store.close()


async def test_a_living_user_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = FileStore(path)
    await store.set("mine", b"")
    await killed_run(path)
    other = FileStore(path)
    assert await other.list() == ["mine", "old"]
    await other.close()
    await store.close()


async def test_what_was_closed_in_order_stays(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    await store.set("key", b"value")
    await store.close()
    again = FileStore(tmp_path / "store")
    assert await again.get("key") == b"value"
    await again.close()


def test_who_is_dead() -> None:
    me = users.me()
    assert not users.is_dead(me)
    assert users.is_dead({**me, "boot": "another boot"})
    assert users.is_dead({**me, "started": "1"})  # the pid was given to another process
    for other in ({"host": "elsewhere"}, {"namespace": 1, "started": "1"}, {"boot": "", "started": "1"}, {"pid": "x"}):
        assert not users.is_dead({**me, **other})
    nonsense: Any = ["no", "mapping"]
    assert not users.is_dead(nonsense)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert users.is_dead({**me, "pid": child, "started": "1"})
    os.waitpid(child, 0)
    assert users.is_dead({**me, "pid": child, "started": "1"})


@pytest.mark.parametrize("keep", [1, 3, 8, 20, 30])
async def test_a_torn_record_is_cut_off(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "store"
    store = FileStore(path)
    await store.set("whole", b"yes")
    size = path.stat().st_size
    await store.set("torn", b"x" * 100)
    await store.close()
    os.truncate(path, size + keep)
    other = FileStore(path)
    await other.set("after", b"")
    assert await other.list() == ["after", "whole"]
    third = FileStore(path)
    assert await third.list() == ["after", "whole"]
    await third.close()
    await other.close()


async def test_a_torn_beginning_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(file.MAGIC[:5])
    store = FileStore(tmp_path / "store")
    await store.set("key", b"")
    assert await store.list() == ["key"]
    await store.close()


async def test_h7_paths_that_cannot_work(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "missing" / "store", "No such file"),
        (tmp_path, "directory"),
        (Path("/proc/version/store"), "Not a directory"),
        (Path("/proc/sys/kernel/ostype"), "opened|belongs"),
    ):
        if str(path).startswith("/proc/sys") and os.geteuid() == 0:
            continue  # root may open it
        with pytest.raises(RendezvousError, match=words) as info:
            FileStore(path)
        assert str(path) in str(info.value)
        assert not isinstance(info.value, RendezvousTimeoutError)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(RendezvousError):
        FileStore(tmp_path / "link")


async def test_h7_read_only_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> int:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(RendezvousError, match=rf"{tmp_path}.*Read-only"):
            FileStore(tmp_path / "store")


async def test_another_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").touch()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RendezvousError, match="belongs to user"):
        FileStore(tmp_path / "store")


async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "store")
    await store.set("key", b"before")

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RendezvousError, match=r"cannot be written.*No space"):
            await store.set("key", b"after")
    assert await store.get("key") == b"before"
    await store.set("key", b"later")
    other = FileStore(tmp_path / "store")
    assert await other.get("key") == b"later"
    await other.close()
    await store.close()


async def test_removed_while_in_use(tmp_path: Path) -> None:
    a, b, unused = (FileStore(tmp_path / "store") for _ in range(3))
    await a.set("key", b"")
    await b.set("key", b"")
    await a.remove()
    with pytest.raises(RendezvousError, match="removed"):
        await b.get("key")
    await unused.set("key", b"in a new file")  # it had not begun yet
    assert (tmp_path / "store").exists()
    await b.remove()  # does not touch the file of others
    assert (tmp_path / "store").exists()
    await unused.remove()
    assert not (tmp_path / "store").exists()


async def test_a_stopped_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(file, "LOCK_SECONDS_MAX", 0.1)
    store = FileStore(tmp_path / "store")
    with (tmp_path / "store").open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(RendezvousError, match="lock"):
            await store.set("key", b"")
    await store.set("key", b"")
    await store.close()


async def test_a_forked_child_has_its_own_lock(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    await store.add("count")
    child = os.fork()
    if child == 0:
        try:
            for _ in range(100):
                store._call("add", ["count", 1], None).send(None)
        except StopIteration:
            pass
        finally:
            os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert await store.add("count") == 3
    assert len(await store.users()) == 2
    await store.close()


@given(noise=st.binary(min_size=1, max_size=300), begins_right=st.booleans())
async def test_noise_is_no_store(tmp_path: Path, noise: bytes, begins_right: bool) -> None:
    path = tmp_path / "noise"
    path.write_bytes(file.MAGIC + noise if begins_right else noise)
    store = FileStore(path)
    try:
        await store.list()
    except RendezvousError as error:
        assert str(path) in str(error)
    await store.close()
