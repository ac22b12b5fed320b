"""Threads, signals, forks and sessions."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest
from conftest import Pool, until

from surgetank import PoolFileSystem, files


def test_other_threads_go_on_while_the_pool_does_not_answer(own_pool: Pool) -> None:
    fs = own_pool.filesystem("gil")
    fs.pipe_file("/a", b"a")
    own_pool.manager.send_signal(signal.SIGSTOP)
    found: list[object] = []
    asking = threading.Thread(target=lambda: found.append(fs.info("/a")["size"]))
    asking.start()
    # This thread runs, however long that waits: a call that kept the lock would stop it here.
    for _ in range(100_000):
        assert not found
    own_pool.manager.send_signal(signal.SIGCONT)
    asking.join()
    assert found == [1]
    fs.end()


@pytest.mark.parametrize("call", ["fs.info('/a')", "fs.drained('/a')", "file.flush()", "fs.cat_file('/a')"])
def test_ctrl_c_ends_a_wait(own_pool: Pool, call: str) -> None:
    target = own_pool.target("signals")
    script = f"""
import os, shutil, signal, sys, surgetank
fs = surgetank.PoolFileSystem(sys.argv[1], target=sys.argv[2], token=sys.argv[3], timeout=3600)
fs.pipe_file("/first", b"")
fs.drained("/first")
first = fs.open("/a", "wb")
file = fs.open("/b", "wb")
file.write(b"b")
# The target takes nothing from now on.
shutil.rmtree(sys.argv[2] + "/.surgetank")
first.close()
print("ready", flush=True)
sys.stdin.readline()
try:
    print("waits", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    # Whatever else this process has to say would wait.
    os._exit(0)
"""
    arguments = [sys.executable, "-c", script, own_pool.address, str(target), str(own_pool.key)]
    ended = threading.Event()
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def interrupt() -> None:
        # One signal may come before the call has begun.
        while not ended.wait(0.2):
            process.send_signal(signal.SIGINT)

    try:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        if "drained" not in call:
            own_pool.manager.send_signal(signal.SIGSTOP)
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "waits\n"
        threading.Thread(target=interrupt).start()
        assert process.stdout.readline() == "interrupted\n"
    finally:
        ended.set()
        process.kill()
        process.communicate()


def test_a_file_goes_on_after_a_wait_for_it_was_interrupted(own_pool: Pool) -> None:
    fs = own_pool.filesystem("goes-on")
    file = fs.open("/a", "wb")
    file.write(b"a" * 100)
    own_pool.manager.send_signal(signal.SIGSTOP)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        file.flush()
    own_pool.manager.send_signal(signal.SIGCONT)
    file.write(b"b")
    file.close()
    assert fs.cat_file("/a") == b"a" * 100 + b"b"
    fs.end()


def test_what_was_appended_is_there_once_when_its_writing_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends, and what was asked for takes place nevertheless."""

    class Native:
        size = 0
        written = b""

        def __init__(self, interrupts: int) -> None:
            self.interrupts = interrupts

        def write_at(self, offset: int, data: bytes) -> None:
            self.written = self.written[:offset] + data + self.written[offset + len(data) :]
            self.size = len(self.written)
            self.interrupts -= 1
            if self.interrupts == 0:
                raise KeyboardInterrupt

        def read_at(self, offset: int, length: int) -> bytes:
            return self.written[offset : offset + length]

        def sync(self) -> None:
            pass

        close = sync

    monkeypatch.setattr(files, "Writer", Native)
    data = bytes(range(256)) * (3 << 14)
    for mode, size in (("ab", None), ("wb", None), ("ab", 64 << 20), ("wb", 64 << 20)):
        for interrupts in (1, 2):
            native = Native(interrupts)
            file = files.buffered(files.RawFile("/a", mode, native), size)  # type: ignore[arg-type]
            with contextlib.suppress(KeyboardInterrupt):
                file.write(b"begins")
                file.flush()
            with contextlib.suppress(KeyboardInterrupt):
                file.write(data)
                file.flush()
            file.flush()
            if not native.written.endswith(data):
                # What was not collected is the program's to write again.
                file.write(data)
            file.write(b"ends")
            file.close()
            assert native.written == b"begins" + data + b"ends", (mode, size, interrupts)
    # Who goes on with something else has what was interrupted before it.
    native = Native(1)
    file = files.buffered(files.RawFile("/a", "ab", native), 1)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        file.write(data)
    file.write(b"ends")
    file.close()
    assert native.written == data[: files.WINDOW] + b"ends"


def test_a_file_whose_opening_was_interrupted_is_as_it_was(own_pool: Pool) -> None:
    """Also if the answer comes while the program is told of the signal."""
    fs = own_pool.filesystem("opening")
    fs.pipe_file("/a", b"former")

    def interrupted(*_: object) -> None:
        own_pool.manager.send_signal(signal.SIGCONT)
        time.sleep(1)
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGINT, interrupted)
    try:
        own_pool.manager.send_signal(signal.SIGSTOP)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            fs.open("/a", "wb")
    finally:
        signal.signal(signal.SIGINT, former)

    # Another session would have cut it off for this one.
    time.sleep(2)
    other = own_pool.filesystem("opening")
    with other.open("/a", "ab") as file:
        file.write(b"!")
    other.end()
    assert fs.cat_file("/a") == b"former!"
    fs.end()


def test_a_close_that_was_interrupted_takes_place_though_the_process_ends(own_pool: Pool) -> None:
    target = own_pool.target("closes")
    script = """
import sys, surgetank
fs = surgetank.PoolFileSystem(sys.argv[1], target=sys.argv[2], token=sys.argv[3])
file = fs.open("/a", "wb")
file.write(b"a" * 30_000_000)
print("ready", flush=True)
sys.stdin.readline()
try:
    print("closes", flush=True)
    file.close()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    arguments = [sys.executable, "-c", script, own_pool.address, str(target), str(own_pool.key)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        own_pool.manager.send_signal(signal.SIGSTOP)
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "closes\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        time.sleep(0.5)
        own_pool.manager.send_signal(signal.SIGCONT)
        assert process.wait() == 0
    fs = own_pool.filesystem(target)
    fs.drained("/a", timeout=60)
    assert fs.cat_file("/a") == b"a" * 30_000_000
    fs.end()


def test_an_open_file_keeps_its_session(pool: Pool, target: Path, fs: PoolFileSystem) -> None:
    fs.pipe_file("/read", b"r" * 3_000_000)
    file, reader = (pool.filesystem(target).open(name, mode) for name, mode in (("/a", "wb"), ("/read", "rb")))
    file.write(b"a")
    gc.collect()
    # As long as a session lasts that nobody renews, and more.
    time.sleep(13)
    file.flush()
    assert fs.cat_file("/a") == b"a"
    assert reader.read() == b"r" * 3_000_000
    file.close()
    assert fs.state("/a") != "torn"


def test_threads_that_say_the_same_have_one_session(pool: Pool, target: Path) -> None:
    options = {"target": str(target), "token": str(pool.key)}
    found: list[PoolFileSystem] = []
    together = threading.Barrier(4)

    def begin() -> None:
        together.wait()
        fs = fsspec.url_to_fs(f"pool://{pool.address}/a", **options)[0]
        assert fs.client
        found.append(fs)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len({id(fs.client) for fs in found}) == 1
    with found[0].open("/a", "wb"):
        for fs in found[1:]:
            with pytest.raises(OSError, match="close it there first") as told:
                fs.open("/a", "wb")
            assert told.value.errno == errno.EBUSY
            with pytest.raises(ValueError, match="close it first"):
                fs.drained("/a")
    assert pool.filesystem(target).client is not found[0].client
    found[0].end()


def test_files_are_looked_at_while_other_threads_open_and_close_some(fs: PoolFileSystem) -> None:
    failed: list[BaseException] = []
    ended = threading.Event()
    fs.pipe_file("/0", b"")

    def look() -> None:
        try:
            while not ended.is_set():
                fs.state("/0")
                for number in range(1, 4):
                    with contextlib.suppress(FileNotFoundError):
                        fs.state(f"/{number}")
        except BaseException as error:
            failed.append(error)

    looking = [threading.Thread(target=look) for _ in range(3)]
    for thread in looking:
        thread.start()
    for turn in range(60):
        with fs.open(f"/{1 + turn % 3}", "wb") as file:
            file.write(b"a")
    ended.set()
    for thread in looking:
        thread.join()
    assert not failed, failed


def test_a_fork_in_the_midst_of_a_beginning_begins_by_itself(own_pool: Pool) -> None:
    fs = own_pool.filesystem("midst")
    own_pool.manager.send_signal(signal.SIGSTOP)
    begins = threading.Thread(target=lambda: fs.exists("/"))
    begins.start()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # A lock that nobody will free is waited for until then.
            signal.alarm(60)
            status = 0 if fs.ls("/") == [] else 2
        finally:
            os._exit(status)
    own_pool.manager.send_signal(signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    begins.join()
    fs.end()


def test_a_fork_has_a_session_of_its_own(fs: PoolFileSystem) -> None:
    fs.pipe_file("/before", b"before")
    file = fs.open("/parents", "wb")
    file.write(b"parents")
    reader = fs.open("/before", "rb")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert fs.cat_file("/before") == b"before"
            fs.pipe_file("/childs", b"childs")
            for call in (lambda: file.flush(), lambda: reader.read()):
                try:
                    call()
                except OSError as error:
                    assert "fork" in str(error), error
                else:
                    raise AssertionError("the parent's file was used")
            del file, reader
            fs.end()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fs.cat_file("/childs") == b"childs"
    assert reader.read() == b"before"
    file.close()
    assert fs.cat_file("/parents") == b"parents"


def _size(fs: PoolFileSystem, name: str) -> int:
    return len(fs.cat_file(name))


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_read(fs: PoolFileSystem, how: str) -> None:
    names = [f"/{number}" for number in range(8)]
    for number, name in enumerate(names):
        fs.pipe_file(name, b"x" * number)
    with multiprocessing.get_context(how).Pool(2) as workers:
        assert workers.starmap(_size, [(fs, name) for name in names]) == list(range(8))


def test_threads_share_a_session(fs: PoolFileSystem) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            data = bytes([number]) * 1_500_000
            for turn in range(4):
                fs.pipe_file(f"/{number}/{turn}", data) if turn else fs.mkdir(f"/{number}")
                assert turn == 0 or fs.cat_file(f"/{number}/{turn}") == data
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert len(fs.find("/")) == 24


def test_after_a_session_has_ended_another_begins(own_pool: Pool, tmp_path: Path) -> None:
    fs = own_pool.filesystem("ends")
    fs.pipe_file("/a", b"a")
    file = fs.open("/open", "wb")
    file.write(b"never")
    fs.client.end()
    # What was open has failed, and says so until it is closed.
    with pytest.raises(OSError, match="session"):
        file.flush()
    with pytest.raises(OSError, match="session"):
        file.close()
    until("another session begins", lambda: _writes(fs))
    assert fs.cat(["/a", "/b"]) == {"/a": b"a", "/b": b"b"}
    fs.end()


def _writes(fs: PoolFileSystem) -> bool:
    try:
        fs.pipe_file("/b", b"b")
    except OSError:
        return False
    return True
