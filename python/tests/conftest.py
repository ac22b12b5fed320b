"""A pool of real processes: a manager and three benefactors of the binary that ``SURGETANK`` names."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from surgetank import PoolFileSystem

BINARY = os.environ.get("SURGETANK", "surgetank")


class Pool:
    """Processes of a pool, which end with it."""

    def __init__(self, place: Path, *, memory: str = "256 MiB", certificates: Path | None = None) -> None:
        self.place = place
        self.certificates = certificates
        self.processes: list[subprocess.Popen[str]] = []
        self.secured = ["--certificates", str(certificates)] if certificates else []
        said = self._start("pool", "manager", "--listen", "127.0.0.1:0", "--directory", str(place / "store"))
        found = re.match(r"pool://(\S+): a manager", said)
        assert found, said
        self.address = found[1]
        self.key = place / "store" / "key"
        for number in range(3):
            self._start(
                *("pool", "benefactor", "--managers", self.address, "--memory", memory, "--listen", "127.0.0.1:0"),
                *("--domain", f"d{number}", "--id", str(number + 1), "--key", str(self.key)),
            )

    def _start(self, *arguments: str) -> str:
        log = (self.place / f"{len(self.processes)}.log").open("w")
        process = subprocess.Popen(
            [BINARY, *arguments, *self.secured], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        self.processes.append(process)
        assert process.stdout
        said = process.stdout.readline()
        assert said, Path(log.name).read_text()
        return said.strip()

    @property
    def manager(self) -> subprocess.Popen[str]:
        return self.processes[0]

    def target(self, name: str) -> Path:
        target = self.place / "targets" / name
        target.mkdir(parents=True, exist_ok=True)
        return target

    def filesystem(self, target: str | Path, **options: object) -> PoolFileSystem:
        """A session of its own."""
        target = self.target(target) if isinstance(target, str) else target
        options = {"token": str(self.key), "skip_instance_cache": True, **options}
        return PoolFileSystem(self.address, target=str(target), **options)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BINARY, *arguments], capture_output=True, text=True, check=False)

    def end(self) -> None:
        for process in reversed(self.processes):
            # One that stands still ends at once as well.
            process.send_signal(signal.SIGKILL)
            process.wait()


def make(**options: object) -> Iterator[Pool]:
    place = Path(tempfile.mkdtemp(prefix="surgetank-python-"))
    pool = None
    try:
        pool = Pool(place, **options)  # type: ignore[arg-type]
        yield pool
    finally:
        if pool is not None:
            pool.end()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """One for all tests that leave it as it was."""
    yield from make()


@pytest.fixture
def own_pool() -> Iterator[Pool]:
    """One whose processes a test stops, and that has little room."""
    yield from make(memory="32 MiB")


_number = 0


@pytest.fixture
def target(pool: Pool) -> Path:
    """A target that no other test has."""
    global _number
    _number += 1
    return pool.target(f"t{_number}")


@pytest.fixture
def fs(pool: Pool, target: Path) -> Iterator[PoolFileSystem]:
    filesystem = pool.filesystem(target)
    yield filesystem
    filesystem.end()


def until(what: str, is_so: object, seconds: float = 60) -> None:
    """Waits until something is so, with a limit that only tells a hang."""
    end = time.monotonic() + seconds
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def stand_still(fs: PoolFileSystem, target: Path) -> None:
    """Has the target take nothing, as if its file system were not mounted. Names that the pool does not have are not found then."""
    fs.pipe_file("/first", b"")
    fs.drained("/first", timeout=60)
    shutil.rmtree(target / ".surgetank")
