"""The file system ``pool://`` of fsspec."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression
from fsspec.utils import isfilelike

from . import _native
from .files import WINDOW, RawFile, ReadFile, TextFile, buffered, compressed
from .sessions import Session, shared
from .waits import wait

#: Names of files that a transaction has not ended.
_DRAFT = ".surgetank-{}-{}"
#: Modes in which files are opened.
_MODES = frozenset({"rb", "r+b", "wb", "w+b", "xb", "x+b", "ab"})
#: Reads of several files or ranges at a time.
_THREADS = 8
#: Bytes of a file that the pool does not commit before it is asked: of more, it keeps 64 MiB at most in this process.
_ONE_COMMIT = 32 << 20
#: Seconds that a look may take in which nothing is waited for any more.
_LAST_LOOK_S = 1.0


class _Shares(type(AbstractFileSystem)):  # type: ignore[misc]
    """fsspec keeps a file system for each thread: those that say the same share a session."""

    def __call__(cls, *args: Any, skip_instance_cache: bool = False, **kwargs: Any) -> Any:
        filesystem = super().__call__(*args, skip_instance_cache=skip_instance_cache, **kwargs)
        if not skip_instance_cache:
            filesystem._session = shared(filesystem._session)
        return filesystem


def _raise_unless_gone(error: OSError) -> None:
    """What becomes of an error of a walk: what somebody has removed meanwhile is left out."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


class PoolFileSystem(AbstractFileSystem, metaclass=_Shares):  # type: ignore[misc]
    """Files of a staging pool, by their paths below the pool's target.

    Parameters
    ----------
    managers:
        The managers' addresses, ``HOST[:PORT][,HOST[:PORT]…]``: those of the URL, ``pool://HOST:PORT/PATH``.
    target:
        The directory that files are drained to, as for ``surgetank mount``; else what ``SURGETANK_POOL_TARGET`` has.
    token:
        The file with a token or the pool's key; else the token in ``SURGETANK_POOL_TOKEN``, else ``/var/lib/surgetank/pool/key``.
    certificates:
        The directory with this machine's certificates, for a pool beyond loopback.
    durable:
        When a commit counts: ``copies=2``, ``copies=2,media=ssd``, ``parity=4+1``. It is fixed when a target is new to the pool.
    timeout:
        Seconds that a call waits for managers, benefactors and room before it fails.
    auto_mkdir:
        Whether directories are made in which files are opened for writing.

    The session with the pool begins with the first call, in each process one of its own: a fork begins another, and leaves files that are
    open to the process that has opened them. All file systems of a process that say the same share one; ``skip_instance_cache=True`` asks
    for another.
    """

    protocol: ClassVar[str] = "pool"
    root_marker: ClassVar[str] = "/"

    def __init__(
        self,
        managers: str = "127.0.0.1:7440",
        target: str | os.PathLike[str] | None = None,
        token: str | os.PathLike[str] | None = None,
        certificates: str | os.PathLike[str] | None = None,
        durable: str | None = None,
        timeout: float = 120.0,
        auto_mkdir: bool = False,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        self.managers = managers
        self.target = target
        self.auto_mkdir = auto_mkdir
        self._session = Session(managers, target, token, certificates, durable, float(timeout))

    # How the pool is reached.

    @property
    def client(self) -> _native.Client:
        """This process's session with the pool."""
        return self._session.client

    def end(self) -> None:
        """Closes what this process has open for writing, and ends its session; the next call begins another.

        Also for other file systems that have the same session.
        """
        self._session.end()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if text.startswith("pool://"):
            # What stands before the first slash is no part of the path.
            text = text[len("pool://") :].partition("/")[2]
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ValueError(f"path {text!r}: `..` is no name in a pool")
        return "/" + "/".join(parts)

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        if not path.startswith("pool://"):
            return {}
        managers = path[len("pool://") :].partition("/")[0]
        return {"managers": managers} if managers else {}

    def unstrip_protocol(self, name: str) -> str:
        return f"pool://{self.managers}{self._strip_protocol(name)}"

    @property
    def fsid(self) -> str:
        return f"pool_{self.managers}_{self.target}"

    # What is there.

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return _info(path, self.client.stat(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        try:
            entries = self.client.entries(path)
            found = [_info(posixpath.join(path, name), stat) for name, stat in entries]
        except NotADirectoryError:
            found = [self.info(path)]
        return found if detail else sorted(info["name"] for info in found)

    def exists(self, path: str, **kwargs: Any) -> bool:
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    # What cannot be looked at is an error, and not a directory in which nothing is.

    def isdir(self, path: str) -> bool:
        return self._is(path, "directory")

    def isfile(self, path: str) -> bool:
        return self._is(path, "file")

    def _is(self, path: str, kind: str) -> bool:
        try:
            return bool(self.info(path)["type"] == kind)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = _raise_unless_gone, **kwargs: Any
    ) -> Iterator[Any]:
        yield from super().walk(path, maxdepth=maxdepth, topdown=topdown, on_error=on_error, **kwargs)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def ukey(self, path: str) -> str:
        info = self.info(path)
        return f"{info['ino']}-{info['size']}-{info['mtime_ns']}"

    # What changes names.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if self.exists(path):
            raise FileExistsError(17, "there is such an entry already", path)
        if create_parents:
            self.makedirs(self._parent(path), exist_ok=True)
        self.client.make_directory(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if path == "/":
            return
        try:
            self._make(path, exist_ok)
        except FileNotFoundError:
            parent = self._parent(path)
            if parent == "/":
                # The target itself is not there.
                raise
            self.makedirs(parent, exist_ok=True)
            self._make(path, exist_ok)

    def _make(self, path: str, exist_ok: bool) -> None:
        try:
            self.client.make_directory(path)
        except FileExistsError:
            if not (exist_ok and self.isdir(path)):
                raise

    def rmdir(self, path: str) -> None:
        self.client.remove_directory(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self.client.unlink(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
            try:
                self.rm_file(one)
            except IsADirectoryError:
                if not recursive:
                    raise
                self.rmdir(one)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Moves a file or directory in one step, also in the place of a file that is there; into a directory that is there."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if path1 == path2:
            return
        if self.isdir(path2):
            path2 = posixpath.join(path2, posixpath.basename(path1))
        self.client.rename(path1, path2)

    mv_file = mv

    def rename(self, path1: str, path2: str, **kwargs: Any) -> None:
        """As ``os.rename``: to this very name."""
        self.client.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        if self.auto_mkdir:
            self.makedirs(self._parent(path2), exist_ok=True)
        with self.open(path1, "rb") as source, self._anew(path2, "wb", source.size) as copy:
            while data := source.read(WINDOW):
                copy.write(data)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            with self.open(path, "wb"):
                pass
        else:
            raise NotImplementedError("the time of a file that is there is that of its commit: touch(path, truncate=False) cannot change it")

    # What files contain.

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        compression = get_compression(path, compression)
        text = {key: kwargs.pop(key) for key in ("encoding", "errors", "newline") if "b" not in mode and key in kwargs}
        commits = kwargs.pop("autocommit", not self._intrans)
        file = self._open(path, mode, block_size=block_size, autocommit=commits, cache_options=cache_options, **kwargs)
        outermost = file
        try:
            if compression is not None:
                outermost = compressed(compr[compression](file, mode=mode[0]), file)
            if "b" not in mode:
                outermost = TextFile(outermost, file, **text)
        except BaseException:
            # Nobody has it: it is left as it was.
            file.close() if isinstance(file, ReadFile) else file.leave()
            raise
        if isinstance(file, ReadFile):
            return outermost
        if outermost is not file:
            file.is_within(outermost)
        if not commits:
            self.transaction.files.append(file)
        return outermost

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        # `rb+` is `r+b`.
        mode = mode[:1] + ("+" if "+" in mode else "") + "b"
        if mode not in _MODES:
            raise ValueError(f"mode is {mode!r}: write one of {', '.join(sorted(_MODES))}")
        size = block_size if isinstance(block_size, int) else None
        if mode == "rb":
            return buffered(RawFile(path, mode, self.client.read(path)), size)
        if self.auto_mkdir and mode != "r+b":
            self.makedirs(self._parent(path), exist_ok=True)
        if not autocommit and mode not in ("wb", "xb"):
            raise NotImplementedError(f"mode is {mode!r}: a transaction has files that are written from their beginning, in modes w and x")
        if autocommit:
            native, is_new = self._writer(path, mode)
            unmake = self._unmake(path) if is_new else None
            raw = RawFile(path, mode, native, unmake=unmake, session=self._session)
        else:
            if mode == "xb" and self.exists(path):
                raise FileExistsError(17, "there is such an entry already", path)
            draft = posixpath.join(self._parent(path), _DRAFT.format(posixpath.basename(path)[:128], uuid.uuid4().hex))

            def final(keeps: bool) -> None:
                if keeps:
                    self.client.rename(draft, path, mode == "wb")
                else:
                    with contextlib.suppress(FileNotFoundError):
                        self.client.unlink(draft)

            raw = RawFile(path, mode, self.client.create(draft), final=final, session=self._session)
        if mode == "ab":
            raw.seek(0, os.SEEK_END)
        file = buffered(raw, size)
        self._session.writes(file)
        return file

    def _writer(self, path: str, mode: str) -> tuple[_native.Writer, bool]:
        """The file, and whether it did not exist."""
        if mode in ("xb", "x+b"):
            return self.client.create(path), True
        if mode == "r+b":
            return self.client.write(path, False), False
        while True:
            try:
                return self.client.write(path, mode != "ab"), False
            except FileNotFoundError:
                pass
            # Somebody else may make it, or remove it, at the same time.
            with contextlib.suppress(FileExistsError):
                return self.client.create(path), True

    def _unmake(self, path: str) -> Callable[[int], None]:
        def unmake(inode: int) -> None:
            # Somebody else may have moved it, or put another in its place.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if self.client.stat(path).inode == inode:
                    self.client.unlink(path)

        return unmake

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        reader = self.client.read(self._strip_protocol(path))
        return _part(reader, start, end)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Ranges of files, several at a time, each file opened once."""
        if max_gap is not None:
            raise NotImplementedError("max_gap is not used here: leave it out")
        if not isinstance(paths, list):
            raise TypeError("paths is no list")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("paths, starts and ends are not as many")
        client = self.client
        with ThreadPoolExecutor(_THREADS) as threads:
            readers = {path: threads.submit(client.read, self._strip_protocol(path)) for path in paths}

            def read(path: str, start: int | None, end: int | None) -> Any:
                try:
                    return _part(readers[path].result(), start, end)
                except Exception as error:
                    if on_error == "return":
                        return error
                    raise

            return list(threads.map(read, paths, starts, ends))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        with self._anew(path, "xb" if mode == "create" else "wb", memoryview(value).nbytes) as file:
            file.write(value)

    @contextlib.contextmanager
    def _anew(self, path: str, mode: str, size: int) -> Iterator[Any]:
        """A file that is written as a whole. What is at its name stays as it was if that fails, however long it is."""
        if self._intrans or size <= _ONE_COMMIT or not self.isfile(path):
            with self.open(path, mode) as file:
                yield file
            return
        # The pool commits parts of a long file before all is written: they are under another name.
        file = self._open(path, mode, autocommit=False)
        try:
            yield file
            file.commit()
        except BaseException:
            file.discard()
            raise

    def get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **kwargs: Any) -> None:
        if isfilelike(lpath):
            outfile = lpath
        elif self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self.open(rpath, "rb"))
            if outfile is None:
                os.makedirs(Path(lpath).parent, exist_ok=True)
                outfile = stack.enter_context(open(lpath, "wb"))
            callback.set_size(file.size)
            while data := file.read(WINDOW):
                callback.relative_update(outfile.write(data) or len(data))

    def put_file(
        self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        rpath = self._strip_protocol(rpath)
        self.makedirs(self._parent(rpath), exist_ok=True)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open(lpath, "rb"))
            size = os.fstat(file.fileno()).st_size
            copy = stack.enter_context(self._anew(rpath, "xb" if mode == "create" else "wb", size))
            callback.set_size(size)
            while data := file.read(WINDOW):
                callback.relative_update(copy.write(data))

    # Where files are.

    def state(self, path: str) -> str | None:
        """Where a file's bytes are: ``staged``, ``replicated``, ``repairing``, ``draining``, ``drained``, ``failed``, ``conflict`` or
        ``torn``, as the pool's documents have them; ``None`` for what is no file."""
        path = self._strip_protocol(path)
        return self._state(path, None)

    def _state(self, path: str, within_s: float | None) -> str | None:
        is_written = any(file.path == path and file.is_dirty for file in self._session.open_files())
        return self.client.state(path, is_written, within_s)

    def replicated(self, path: str, timeout: float | None = None) -> None:
        """Returns when as many benefactors have a file, or each file below a directory, as the mount's durability says.

        Raises ``TimeoutError`` after so many seconds, and :class:`NeverThere` for files that never will be.
        """
        self._wait(path, "replicated", timeout)

    def drained(self, path: str, timeout: float | None = None) -> None:
        """Returns when the target has a file, or each file below a directory, verified by length and checksum.

        A file is drained once it is closed. Raises as :meth:`replicated`.
        """
        path = self._strip_protocol(path)
        below = path.rstrip("/") + "/"
        for file in self._session.open_files():
            if file.path == path or file.path.startswith(below):
                raise ValueError(f"{file.path} is open for writing in this process, and is drained once it is closed: close it first")
        self._wait(path, "drained", timeout)

    def _wait(self, path: str, wanted: str, timeout: float | None) -> None:
        path = self._strip_protocol(path)
        until = None if timeout is None else time.monotonic() + timeout

        def left_s() -> float | None:
            return None if until is None else max(until - time.monotonic(), _LAST_LOOK_S)

        # What was never there is no file that is there.
        if self.client.stat(path, left_s()).kind == "link":
            raise OSError(22, "it is a symbolic link, which is not followed here: name the file that it points to", path)
        wait(lambda: self._files(path, left_s), lambda file: self._state_if_there(file, left_s()), wanted, timeout)

    def _state_if_there(self, path: str, within_s: float | None) -> str | None:
        try:
            return self._state(path, within_s)
        except FileNotFoundError:
            return None

    def _files(self, path: str, left_s: Callable[[], float | None]) -> Iterator[str]:
        """The regular files at a path and below it."""
        try:
            stat = self.client.stat(path, left_s())
            below = self.client.entries(path, left_s()) if stat.kind == "directory" else [("", stat)]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, found in below:
            at = posixpath.join(path, name) if name else path
            if found.kind == "directory":
                yield from self._files(at, left_s)
            elif found.kind == "file":
                yield at


def _info(path: str, stat: _native.Stat) -> dict[str, Any]:
    info = {
        "name": path,
        "size": stat.size,
        "type": stat.kind,
        "mode": stat.mode,
        "uid": stat.uid,
        "gid": stat.gid,
        "mtime": stat.modified_ns / 1e9,
        "mtime_ns": stat.modified_ns,
        "ino": stat.inode,
        "nlink": stat.names,
    }
    if stat.kind == "directory":
        info["size"] = 0
    if stat.link is not None:
        info["destination"] = stat.link
    return info


def _part(reader: _native.Reader, start: int | None, end: int | None) -> bytes:
    """Bytes from ``start`` to ``end``, which count from the end of the file if they are negative."""
    size = reader.size
    first = 0 if start is None else start if start >= 0 else max(size + start, 0)
    last = size if end is None else end if end >= 0 else size + end
    parts = [reader.read_at(at, min(WINDOW, last - at)) for at in range(first, min(last, size), WINDOW)]
    return parts[0] if len(parts) == 1 else b"".join(parts)
