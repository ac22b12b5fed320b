"""This process's sessions with pools: all who say the same have the same one, whatever their thread."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Any

from ._native import Client

#: The variable that has the target, unless it is said.
TARGET = "SURGETANK_POOL_TARGET"


class Session:
    """A session that begins with the first call, and in a fork once more; and what is open for writing in it."""

    def __init__(
        self,
        managers: str,
        target: str | os.PathLike[str] | None,
        token: str | os.PathLike[str] | None,
        certificates: str | os.PathLike[str] | None,
        durable: str | None,
        timeout_s: float,
    ) -> None:
        self._managers = managers
        self._target = target
        self._options = (token, certificates, durable, timeout_s)
        paths = (None if path is None else os.fspath(path) for path in (target, token, certificates))
        #: Who says the same.
        self.key = (managers, *paths, durable, timeout_s)
        self.forked()
        with _knowing:
            _sessions.add(self)

    def forked(self) -> None:
        """Nothing of the former process is here: its session is not, and nobody who could free its lock."""
        self._beginning = threading.Lock()
        self._client: Client | None = None
        #: By their identities: files may be equal. What is dropped takes itself out, in whichever thread that is.
        self._written: dict[int, weakref.ref[Any]] = {}

    @property
    def client(self) -> Client:
        client = self._client
        if client is not None:
            return client
        with self._beginning:
            if self._client is None:
                target = self._target or os.environ.get(TARGET)
                if not target:
                    raise ValueError(
                        f"the pool's target is not said: add target=\"/the/directory\" to the options of pool://, or set {TARGET}"
                    )
                self._client = Client(self._managers, target, *self._options)
            return self._client

    def writes(self, file: Any) -> None:
        """Keeps in mind what is open for writing."""
        written, key = self._written, id(file)
        written[key] = weakref.ref(file, lambda _: written.pop(key, None))

    def open_files(self) -> list[Any]:
        """What is open for writing. Other threads open and close files meanwhile."""
        files = (of() for of in self._written.copy().values())
        return [file for file in files if file is not None and not file.closed]

    def end(self) -> None:
        """Closes what is open for writing, whatever becomes of each, and ends the session. The first error is raised, and has the others."""
        failed = self.end_each()
        if failed:
            for other in failed[1:]:
                failed[0].add_note(f"and {type(other).__name__}: {other}")
            raise failed[0]

    def end_each(self) -> list[BaseException]:
        """The same, with all errors: those of files first."""
        client, self._client = self._client, None
        failed: list[BaseException] = []
        if client is None:
            return failed
        for file in self.open_files():
            try:
                file.close_from_outside()
            except BaseException as error:
                error.add_note(f"{file.path} was open for writing, and is not closed: what was not committed is lost")
                failed.append(error)
        try:
            client.end()
        except BaseException as error:
            failed.append(error)
        return failed


#: Sessions that are ended when the process ends.
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
#: Those of file systems that fsspec keeps for all who say the same.
_shared: weakref.WeakValueDictionary[Any, Session] = weakref.WeakValueDictionary()
_knowing = threading.Lock()


def shared(session: Session) -> Session:
    """The one of all who say the same."""
    with _knowing:
        return _shared.setdefault(session.key, session)


def _all() -> list[Session]:
    with _knowing:
        return list(_sessions)


def _forked() -> None:
    global _knowing
    # Another thread of the former process may have had it.
    _knowing = threading.Lock()
    for session in _all():
        session.forked()


@atexit.register
def _end_all() -> None:
    for session in _all():
        # Nobody calls this: what has failed is told as what nobody has caught, and those that follow end as well. A session that cannot be
        # ended has lost nothing, and ends by itself.
        for error in session.end_each():
            if getattr(error, "__notes__", ()):
                sys.excepthook(type(error), error, error.__traceback__)


os.register_at_fork(after_in_child=_forked)
