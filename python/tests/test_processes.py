"""Threads, signals, forks and sessions."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import Pool, until

from surgetank import PoolFileSystem


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
