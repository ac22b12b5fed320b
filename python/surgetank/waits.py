"""Waits until files are where somebody needs them, as ``surgetank pool wait`` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

#: What a file is in when it is there, by what is waited for.
_THERE = {
    "replicated": frozenset({"replicated", "draining", "drained"}),
    "drained": frozenset({"drained"}),
}
#: What it is in while it may get there.
_COMES = frozenset({"staged", "repairing", "replicated", "draining"})
#: Why it does not, and what to do.
_NEVER = {
    "failed": "chunks of it are lost with their benefactors, or it is longer than a file at its target may be: write it again, or remove it",
    "conflict": "somebody else has put or changed what is at its name at the target, where that stays: move that away and write the "
    "file again, or copy the file to another name",
    "torn": "its writer ended before it closed the file: what was committed is drained, the rest is lost: write it again, or remove it",
}
#: Between two looks, in seconds: the first, and the longest.
_LOOK_S = 0.01
_LOOK_MAX_S = 0.2
#: Files that are named at most.
_NAMED = 5


class NeverThere(OSError):
    """Some files will not get where they were waited for; ``states`` has them, with the state of each."""

    def __init__(self, states: dict[str, str], of: int) -> None:
        self.states = states
        parts = []
        for state in sorted(set(states.values())):
            files = [path for path, found in states.items() if found == state]
            more = f", and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
            why = _NEVER.get(state, "it is in a state that this package does not know: use the version of the pool")
            parts.append(f"{len(files)} {state} ({', '.join(files[:_NAMED])}{more}): {why}")
        super().__init__(f"{len(states)} of {of} files will not get there: {'; '.join(parts)}")


def wait(
    files: Callable[[], Iterable[str]],
    state_of: Callable[[str], str | None],
    wanted: str,
    timeout: float | None,
) -> None:
    """Returns when all files are there. Those that never will be are told of once all others are."""
    there = _THERE[wanted]
    until = None if timeout is None else time.monotonic() + timeout
    pause = _LOOK_S
    # What the target has stays there, as long as nobody writes it again: it is not asked for again.
    done: set[str] = set()
    while True:
        never: dict[str, str] = {}
        waits: tuple[str, str] | None = None
        found: list[str] = []
        for path in files():
            found.append(path)
            if path in done:
                continue
            state = state_of(path)
            # It is gone.
            if state is None:
                continue
            if state in there:
                if wanted == "drained":
                    done.add(path)
            elif state not in _COMES:
                never[path] = state
            elif waits is None:
                waits = (path, state)
        if waits is None:
            if never:
                raise NeverThere(never, len(found))
            return
        if until is not None and time.monotonic() >= until:
            path, state = waits
            raise TimeoutError(
                f"{path} is {state} and not {wanted} after {timeout:g} s: wait longer, or see `surgetank pool status`"
            )
        time.sleep(pause if until is None else min(pause, max(until - time.monotonic(), 0)))
        pause = min(pause * 2, _LOOK_MAX_S)
