"""Every failure is an exception of Python's own kinds, with one clear sentence."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Pool, make, stand_still
from test_files import token

from surgetank import PoolFileSystem


def test_errors_are_those_of_files(fs: PoolFileSystem) -> None:
    fs.pipe_file("/file", b"a")
    fs.mkdir("/directory")
    fs.pipe_file("/directory/a", b"a")
    calls: list[tuple[type[OSError], int, Callable[[], object]]] = [
        (FileNotFoundError, errno.ENOENT, lambda: fs.cat_file("/none")),
        (FileNotFoundError, errno.ENOENT, lambda: fs.open("/none/a", "wb")),
        (FileNotFoundError, errno.ENOENT, lambda: fs.rm_file("/none")),
        (FileNotFoundError, errno.ENOENT, lambda: fs.ls("/none")),
        (FileNotFoundError, errno.ENOENT, lambda: fs.mv("/none", "/a")),
        (FileExistsError, errno.EEXIST, lambda: fs.open("/file", "xb")),
        (IsADirectoryError, errno.EISDIR, lambda: fs.open("/directory")),
        (IsADirectoryError, errno.EISDIR, lambda: fs.open("/directory", "wb")),
        (IsADirectoryError, errno.EISDIR, lambda: fs.rm_file("/directory")),
        (NotADirectoryError, errno.ENOTDIR, lambda: fs.rmdir("/file")),
        (NotADirectoryError, errno.ENOTDIR, lambda: fs.open("/file/a", "wb")),
        (OSError, errno.ENOTEMPTY, lambda: fs.rmdir("/directory")),
        (OSError, errno.EINVAL, lambda: fs.rename("/directory", "/directory/b")),
        (OSError, errno.EINVAL, lambda: fs.open("/" + "n" * 256, "wb")),
    ]
    for kind, number, call in calls:
        with pytest.raises(kind) as told:
            call()
        assert told.value.errno == number
        sentence = str(told.value)
        assert "\n" not in sentence and len(sentence) > 20, sentence


def test_tokens_decide_what_a_session_may(pool: Pool, target: Path, fs: PoolFileSystem, tmp_path: Path) -> None:
    fs.pipe_file("/a", b"a")

    def private(text: str) -> Path:
        file = tmp_path / f"token{len(list(tmp_path.iterdir()))}"
        file.touch(mode=0o600)
        file.write_text(text)
        return file

    reads = pool.filesystem(target, token=private(token(pool, target, "--read-only")))
    assert reads.cat_file("/a") == b"a"
    for call in (lambda: reads.pipe_file("/b", b""), lambda: reads.rm("/a"), lambda: reads.mkdir("/c")):
        with pytest.raises(PermissionError, match="token"):
            call()
    # What is made is the process's user's, which must be the token's.
    user, group = os.geteuid(), os.getegid()
    owned = pool.filesystem(target, token=private(token(pool, target, "--owner", f"{user}:{group}")))
    owned.pipe_file("/owned", b"a")
    anothers = pool.filesystem(target, token=private(token(pool, target, "--owner", f"{user + 1}:{group}")))
    assert anothers.cat_file("/owned") == b"a"
    with pytest.raises(PermissionError, match="token"):
        anothers.pipe_file("/b", b"")
    with pytest.raises(PermissionError):
        pool.filesystem(pool.target("another"), token=private(token(pool, target))).ls("/")
    readable = private(token(pool, target))
    readable.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        pool.filesystem(target, token=readable).ls("/")
    for wrong in (private("nonsense"), tmp_path / "none"):
        with pytest.raises(PermissionError, match="surgetank pool token"):
            pool.filesystem(target, token=wrong).ls("/")
    for filesystem in (reads, owned, anothers):
        filesystem.end()


def test_files_have_the_owner_and_mode_that_other_files_of_the_process_have(fs: PoolFileSystem) -> None:
    fs.pipe_file("/a", b"")
    fs.mkdir("/b")
    mask = os.umask(0o022)
    os.umask(mask)
    for name, mode in (("/a", 0o666), ("/b", 0o777)):
        info = fs.info(name)
        assert (info["mode"], info["uid"], info["gid"]) == (mode & ~mask, os.geteuid(), os.getegid())


def test_options_that_make_no_sense_are_told(pool: Pool, target: Path) -> None:
    wrong: list[tuple[type[Exception], str, dict[str, object]]] = [
        (ValueError, "copies=1, copies=2", {"durable": "copies=0"}),
        (ValueError, "write such as parity=4.1", {"durable": "parity=4"}),
        (ValueError, "write seconds", {"timeout": 0}),
        (ValueError, "write seconds", {"timeout": float("nan")}),
        (ValueError, "pool certificates", {"certificates": "/nowhere"}),
        (FileNotFoundError, "make it, or name another directory", {"target": "/nowhere"}),
        (NotADirectoryError, "it is no directory", {"target": str(pool.key)}),
    ]
    for kind, why, options in wrong:
        with pytest.raises(kind, match=why) as told:
            PoolFileSystem(pool.address, **{"target": str(target), "token": str(pool.key), **options}).ls("/")
        assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="target is not said"):
        PoolFileSystem(pool.address, token=str(pool.key), skip_instance_cache=True).ls("/")
    for address in ("", ",", "no port:x"):
        with pytest.raises(ValueError, match="address|manager"):
            PoolFileSystem(address, target=str(target), token=str(pool.key), skip_instance_cache=True).ls("/")
    with pytest.raises(ValueError, match="is not a loopback address"):
        PoolFileSystem("192.0.2.1:1", target=str(target), token=str(pool.key), skip_instance_cache=True).ls("/")
    with pytest.raises(ConnectionError, match="start one with `surgetank pool up`"):
        PoolFileSystem("127.0.0.1:1", target=str(target), token=str(pool.key), skip_instance_cache=True).ls("/")


def test_no_room_is_told_by_the_write_or_the_flush_and_by_all_that_follow(own_pool: Pool) -> None:
    target = own_pool.target("full")
    fs = own_pool.filesystem(target, timeout=3, durable="copies=1")
    file = fs.open("/large", "wb")
    # Nothing can be drained that would make room.
    stand_still(fs, target)
    with pytest.raises(OSError) as told:
        for _ in range(40):
            file.write(bytes(8 << 20)[:-1] + b"x")
        file.flush()
    assert told.value.errno == errno.ENOSPC, told.value
    with pytest.raises(OSError):
        file.flush()
    with pytest.raises(OSError):
        file.close()
    assert file.closed
    # The pool takes what there is room for.
    (target / ".surgetank").mkdir()
    fs.rm_file("/large")
    fs.pipe_file("/small", b"a")
    fs.drained("/small", timeout=120)
    fs.end()


def test_pools_beyond_this_machine_are_called_with_certificates(tmp_path: Path) -> None:
    made = subprocess.run(
        [os.environ["SURGETANK"], "pool", "certificates", str(tmp_path / "pki"), "--host", "127.0.0.1", "--client", "login1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    for pool in make(certificates=tmp_path / "pki" / "127.0.0.1"):
        fs = pool.filesystem("secured", certificates=tmp_path / "pki" / "login1")
        fs.pipe_file("/a", b"a" * 3_000_000)
        assert fs.cat_file("/a") == b"a" * 3_000_000
        fs.end()
        with pytest.raises((PermissionError, ConnectionError)):
            pool.filesystem("secured").ls("/")


def test_without_torch_the_module_for_it_says_so() -> None:
    # A name that cannot be imported stands for a package that is not there.
    script = "import sys; sys.modules['torch'] = None; import surgetank; import surgetank.dcp"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    told = [line for line in ended.stderr.splitlines() if line.startswith("ImportError: ")]
    assert len(told) == 1 and "surgetank.dcp needs torch 2.4 or newer" in told[0] and "install torch" in told[0], ended.stderr
