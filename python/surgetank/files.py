"""Files of a pool as Python's ``io`` has files: ``flush`` commits, ``close`` commits and lets the target see the file."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fsspec.core import OpenFile

from ._native import Reader, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Bytes that are collected before they go to the pool, and fetched at least: a chunk of the pool.
CHUNK = 1 << 20
#: Bytes that one call passes on: it is copied while other threads of the interpreter wait.
WINDOW = 8 << 20
#: Calls between a close by fsspec and that of a file: a compressed file and one of text are between.
_FRAMES = 6


class RawFile(io.RawIOBase):
    """A file without a buffer. Positions count in bytes; a write behind the end leaves a gap of zeros, which takes no room."""

    def __init__(
        self,
        path: str,
        mode: str,
        native: Reader | Writer,
        *,
        position: int = 0,
        final: Callable[[bool], None] | None = None,
        unmake: Callable[[int], None] | None = None,
        session: object = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.mode = mode
        #: What is under a temporary name gets its own, or goes, by this.
        self._final = final
        #: What did not exist before goes by this.
        self._unmake = unmake
        #: It closes what is open when the process ends: it lasts as long as this.
        self._session = session
        self._native = native
        self._position = position
        self._appends = mode == "ab"
        #: What was to be appended when the wait for it was interrupted, and where: it may be there by now.
        self._interrupted: tuple[int, bytes] | None = None
        self._process = os.getpid()

    @property
    def name(self) -> str:
        return self.path

    @property
    def size(self) -> int:
        """Bytes of the file, with what is not committed."""
        return self._native.size

    @property
    def is_dirty(self) -> bool:
        """Whether something is not committed."""
        return isinstance(self._native, Writer) and self._native.is_dirty

    def readable(self) -> bool:
        return isinstance(self._native, Reader) or "+" in self.mode

    def writable(self) -> bool:
        return isinstance(self._native, Writer)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._native.size}
        if whence not in origins:
            raise ValueError(f"whence is {whence}: write 0, 1 or 2")
        position = origins[whence] + offset
        if position < 0:
            raise ValueError(f"a file has no position {position}")
        self._position = position
        return position

    def readinto(self, buffer: Buffer, /) -> int:
        self._check()
        if not self.readable():
            raise io.UnsupportedOperation("the file is open for writing alone")
        into = memoryview(buffer).cast("B")
        read = self._native.read_at(self._position, min(len(into), WINDOW))
        into[: len(read)] = read
        self._position += len(read)
        return len(read)

    def readall(self) -> bytes:
        self._check()
        if not self.readable():
            raise io.UnsupportedOperation("the file is open for writing alone")
        parts = []
        while part := self._native.read_at(self._position, WINDOW):
            self._position += len(part)
            parts.append(part)
        return b"".join(parts)

    def write(self, data: Buffer, /) -> int:
        native = self._writer()
        of = memoryview(data).cast("B")
        begins = self._position
        if self._appends:
            begins = native.size
            if self._interrupted is not None:
                at, former = self._interrupted
                # The same once more goes to the same place. Anything else goes behind it: this waits until it is there.
                if of[: len(former)] == former:
                    begins = at
                else:
                    native.read_at(at, 0)
                    begins = native.size
        # Ends with a chunk, so that whole chunks go on as they are. Whoever has more calls again: the position is never in the midst of a call.
        part = bytes(of[: WINDOW - begins % CHUNK])
        self._interrupted = (begins, part) if self._appends else None
        native.write_at(begins, part)
        self._interrupted = None
        self._position = begins + len(part)
        return len(part)

    def truncate(self, size: int | None = None, /) -> int:
        size = self._position if size is None else size
        if size < 0:
            raise ValueError(f"a file has no {size} bytes")
        self._writer().set_size(size)
        return size

    def sync(self) -> None:
        """Returns when everything that was written is committed."""
        self._check()
        if isinstance(self._native, Writer):
            # Whoever was told that it is there finds it there.
            self._unmake = None
            self._writer().sync()

    def close(self) -> None:
        if self.closed:
            return
        try:
            # What a fork has inherited is closed by the process that has opened it.
            if isinstance(self._native, Writer) and self._process == os.getpid():
                self._native.close()
        finally:
            super().close()

    @property
    def replaces(self) -> bool:
        """Whether it is written anew, and not changed."""
        return self.mode[0] in "wx"

    def abandon(self) -> None:
        """Closes the file without what is not committed; one that did not exist before goes again, unless it was flushed."""
        if self.closed:
            return
        try:
            if isinstance(self._native, Writer) and self._process == os.getpid():
                self._native.abandon()
                if self._unmake is not None:
                    self._unmake(self._native.inode)
        finally:
            super().close()

    def finish(self, keeps: bool) -> None:
        """Gives a file of a transaction its name, or removes it."""
        if self._final is not None:
            # What could not get its name is removed next.
            self._final(keeps)
            self._final = None

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def _writer(self) -> Writer:
        self._check()
        if not isinstance(self._native, Writer):
            raise io.UnsupportedOperation("the file is open for reading alone")
        return self._native


class _Commits:
    """What a buffered file that is written has in common."""

    raw: RawFile
    _is_closing = False
    #: It is left as it was, since the block that wrote it has raised.
    _is_left = False
    #: Something was written since the last flush.
    _is_written = False
    #: The file of text, or the compressed one, that a program writes to in place of this one.
    _outside: weakref.ref[Any] | None = None

    @property
    def path(self) -> str:
        return self.raw.path

    @property
    def is_dirty(self) -> bool:
        """Whether something is not committed."""
        return not self.raw.closed and (self._is_written or self.raw.is_dirty)

    def write(self, data: Buffer, /) -> int:
        self._is_written = True
        return super().write(data)  # type: ignore[misc, no-any-return]

    def flush(self) -> None:
        """Returns when everything that was written is committed: as many benefactors have it as the mount's durability says."""
        if not self.closed and self._leaves():  # type: ignore[attr-defined]
            return
        super().flush()  # type: ignore[misc]
        # A close commits by itself.
        if not self._is_closing:
            self.raw.sync()
        self._is_written = False

    def close(self) -> None:
        """Commits, and closes the file: the target is to have it."""
        if self._leaves():
            self.raw.abandon()
            return
        self._is_closing = True
        super().close()  # type: ignore[misc]

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and self.raw.replaces:
            self._is_left = True
        self.close()

    def _leaves(self) -> bool:
        """Whether the file stays as it was."""
        self._is_left = self._is_left or (self.raw.replaces and _in_block_that_raises(self))
        return self._is_left

    def leave(self) -> None:
        """Closes the file as it was committed last."""
        self._is_left = True
        self.close()

    def is_within(self, outside: Any) -> None:
        """A program writes to another file, which passes bytes on to this one."""
        with contextlib.suppress(TypeError):
            self._outside = weakref.ref(outside)

    def close_from_outside(self) -> None:
        """Closes the file with what is still in the one that a program writes to."""
        outside = self._outside() if self._outside is not None else None
        try:
            if outside is not None:
                outside.close()
            # `fsspec.open` makes files of text itself.
            for found in gc.get_referrers(self):
                if isinstance(found, io.TextIOWrapper):
                    found.close()
        finally:
            self.close()

    def commit(self) -> None:
        """Ends a transaction: the file gets its name, unless the block that wrote it has raised."""
        self.close_from_outside()
        self.raw.finish(not self._is_left)

    def discard(self) -> None:
        """Ends a transaction: nothing is left of the file."""
        try:
            self.leave()
        finally:
            self.raw.finish(False)


def _in_block_that_raises(file: _Commits) -> bool:
    """Whether ``fsspec.open`` closes the file because its block raises: its own ``__exit__`` closes in any case, and tells no file why."""
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame.f_code is OpenFile.__exit__.__code__:
            error, opened = frame.f_locals.get("args") or (None,), frame.f_locals.get("self")
            return error[0] is not None and any(one is file for one in getattr(opened, "fobjects", ()))
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


class _Compressed:
    """What a compressed file does more here: fsspec's compressors leave what is below open, and do not know of blocks that raise."""

    _below: Any
    #: fsspec gives files in archives a close of their own.
    _close: Callable[[], None] | None = None

    def close(self) -> None:
        try:
            (self._close or super().close)()  # type: ignore[misc]
        finally:
            self._below.close()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        _exit(self, self._below, kind)


def compressed(outside: Any, below: Any) -> Any:
    """A compressed file that closes what is below as well."""
    # One of another language than Python stays what it is.
    with contextlib.suppress(TypeError, AttributeError):
        outside._below, outside._close = below, vars(outside).pop("close", None)
        outside.__class__ = type(type(outside).__name__, (_Compressed, type(outside)), {})
    return outside


def _exit(outside: Any, below: Any, kind: type[BaseException] | None) -> None:
    if kind is None or not isinstance(below, _Commits) or not below.raw.replaces:
        outside.close()
        return
    below.leave()
    # What is between has nowhere to put its end.
    with contextlib.suppress(ValueError):
        outside.close()


class TextFile(io.TextIOWrapper):
    """A file of text."""

    def __init__(self, buffer: Any, of: Any, **options: Any) -> None:
        super().__init__(buffer, **options)
        self._of = of

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        _exit(self, self._of, kind)


class ReadFile(io.BufferedReader):
    """A file that is read, as it was committed when it was opened."""

    raw: RawFile

    @property
    def path(self) -> str:
        return self.raw.path

    @property
    def size(self) -> int:
        return self.raw.size


class WriteFile(_Commits, io.BufferedWriter):
    """A file that is written."""

    raw: RawFile


class UpdateFile(_Commits, io.BufferedRandom):
    """A file that is read and written: what is read has what is written here, committed or not."""

    raw: RawFile


def buffered(raw: RawFile, size: int | None = None) -> Any:
    """The file with a buffer."""
    size = max(int(size or CHUNK), 1)
    if not raw.writable():
        return ReadFile(raw, size)
    return UpdateFile(raw, size) if raw.readable() else WriteFile(raw, size)
