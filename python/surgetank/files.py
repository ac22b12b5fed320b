"""Files of a pool as Python's ``io`` has files: ``flush`` commits, ``close`` commits and lets the target see the file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._native import Reader, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Bytes that are collected before they go to the pool, and fetched at least: a chunk of the pool.
CHUNK = 1 << 20
#: Bytes that one call passes on: it is copied while other threads of the interpreter wait.
WINDOW = 8 << 20


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
    ) -> None:
        super().__init__()
        self.path = path
        self.mode = mode
        #: What is under a temporary name gets its own, or goes, by this.
        self._final = final
        self._native = native
        self._position = position
        self._appends = mode == "ab"
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
        if self._appends:
            self._position = native.size
        written = 0
        while written < len(of):
            # Ends with a chunk, so that whole chunks go on as they are.
            room = WINDOW - self._position % CHUNK
            part = bytes(of[written : written + room])
            native.write_at(self._position, part)
            self._position += len(part)
            written += len(part)
        return written

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

    def abandon(self) -> None:
        """Closes the file without what is not committed."""
        if self.closed:
            return
        try:
            if isinstance(self._native, Writer) and self._process == os.getpid():
                self._native.abandon()
        finally:
            super().close()

    def finish(self, keeps: bool) -> None:
        """Gives a file of a transaction its name, or removes it."""
        if self._final is not None:
            final, self._final = self._final, None
            final(keeps)

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

    @property
    def path(self) -> str:
        return self.raw.path

    @property
    def is_dirty(self) -> bool:
        """Whether something is not committed."""
        return not self.raw.closed and (self.raw.is_dirty or self.tell() != self.raw.tell())  # type: ignore[attr-defined]

    def flush(self) -> None:
        """Returns when everything that was written is committed: as many benefactors have it as the mount's durability says."""
        super().flush()  # type: ignore[misc]
        # A close commits by itself.
        if not self._is_closing:
            self.raw.sync()

    def close(self) -> None:
        """Commits, and closes the file: the target is to have it."""
        self._is_closing = True
        super().close()  # type: ignore[misc]

    def commit(self) -> None:
        """Ends a transaction: the file gets its name."""
        self.close()
        self.raw.finish(True)

    def discard(self) -> None:
        """Ends a transaction: nothing is left of the file."""
        self.close()
        self.raw.finish(False)


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
