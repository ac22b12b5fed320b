"""What is there after the process that wrote it was killed, and how one waits for more."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Pool, stand_still, until

from surgetank import NeverThere, PoolFileSystem

#: Writes, flushes, writes more, and says so. What stands for `{planted}` makes it another program.
WRITER = """
import sys
import surgetank
from surgetank.files import RawFile
{planted}
fs = surgetank.PoolFileSystem(sys.argv[1], target=sys.argv[2], token=sys.argv[3])
file = fs.open("/flushed", "wb")
file.write(b"f" * 3_000_001)
file.flush()
file.write(b"n" * 3_000_001)
text = fs.open("/text", "w")
text.write("line")
text.flush()
closed = fs.open("/closed", "wb")
closed.write(b"c" * 3_000_001)
closed.close()
print("written", flush=True)
sys.stdin.read()
"""
#: Bugs on purpose: a flush that moves the bytes and does not commit, one that does nothing, a close that commits nothing.
PLANTED = {
    "flush moves and does not commit": "RawFile.sync = lambda self: None",
    "flush does nothing": "from surgetank.files import _Commits; _Commits.flush = lambda self: None",
    "close commits nothing": "RawFile.close = RawFile.abandon",
}


def killed(pool: Pool, target: Path, planted: str = "") -> None:
    """Runs the writer, and kills it once it has said that everything is written."""
    arguments = [sys.executable, "-c", WRITER.format(planted=planted), pool.address, str(target), str(pool.key)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "written\n"
        process.kill()


def is_whole(fs: PoolFileSystem) -> bool:
    """Whether everything is there that was acknowledged."""
    try:
        flushed, closed, text = (fs.cat_file(name) for name in ("/flushed", "/closed", "/text"))
    except FileNotFoundError:
        return False
    # What was not flushed may be there, and whatever is there is what was written.
    more = flushed[3_000_001:]
    return (
        flushed[:3_000_001] == b"f" * 3_000_001
        and more == b"n" * len(more)
        and closed == b"c" * 3_000_001
        and text == b"line"
    )


def test_what_was_flushed_is_there_after_the_process_was_killed(pool: Pool, target: Path, fs: PoolFileSystem) -> None:
    killed(pool, target)
    assert is_whole(fs)
    fs.drained("/closed", timeout=60)
    assert (target / "closed").read_bytes() == b"c" * 3_000_001


@pytest.mark.parametrize("planted", PLANTED)
def test_a_flush_or_close_that_does_not_commit_is_found(
    pool: Pool, target: Path, fs: PoolFileSystem, planted: str
) -> None:
    killed(pool, target, PLANTED[planted])
    assert not is_whole(fs)


def test_a_file_whose_writer_was_killed_is_torn_and_a_wait_says_so(
    pool: Pool, target: Path, fs: PoolFileSystem
) -> None:
    killed(pool, target)
    until("its session ends", lambda: fs.state("/flushed") == "torn")
    for wait in (fs.drained, fs.replicated):
        with pytest.raises(NeverThere, match="its writer ended before it closed the file") as told:
            wait("/", timeout=60)
        assert set(told.value.states.items()) >= {("/flushed", "torn")}
        assert "\n" not in str(told.value)
    # All others were waited for.
    assert fs.state("/closed") == "drained"


def test_what_is_dropped_without_a_close_is_committed_when_the_process_ends(
    pool: Pool, target: Path, fs: PoolFileSystem
) -> None:
    script = (
        "import sys, surgetank\n"
        "fs = surgetank.PoolFileSystem(sys.argv[1], target=sys.argv[2], token=sys.argv[3])\n"
        "file = fs.open('/a', 'wb')\n"
        "file.write(b'a')\n"
    )
    subprocess.run([sys.executable, "-c", script, pool.address, str(target), str(pool.key)], check=True)
    fs.drained("/a", timeout=60)
    assert (target / "a").read_bytes() == b"a"


#: What a program has open, which passes bytes on when it is closed.
OUTSIDE = {
    "text": "fs.open('/a', 'w')",
    "text of fsspec.open": "fsspec.open('pool://' + sys.argv[1] + '/a', 'w', **options)",
    "gzip": "fs.open('/a', 'wb', compression='gzip')",
    "text in gzip": "fs.open('/a', 'wt', compression='gzip')",
    "a session of nobody else": "PoolFileSystem(sys.argv[1], skip_instance_cache=True, **options).open('/a', 'w')",
}


@pytest.mark.parametrize("ends", ["", "fs.end()"])
@pytest.mark.parametrize("outside", OUTSIDE)
def test_what_text_and_compressed_files_have_collected_is_committed_when_the_process_ends(
    pool: Pool, target: Path, fs: PoolFileSystem, outside: str, ends: str
) -> None:
    if ends and "nobody" in outside:
        pytest.skip("there is nobody to end it")
    script = f"""
import sys, fsspec
from surgetank import PoolFileSystem
options = {{"target": sys.argv[2], "token": sys.argv[3]}}
fs = PoolFileSystem(sys.argv[1], **options)
opened = {OUTSIDE[outside]}
file = opened.open() if isinstance(opened, fsspec.core.OpenFile) else opened
file.write({"b'x' * 100" if outside == "gzip" else "'x' * 100"})
{ends}
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, pool.address, str(target), str(pool.key)], check=True, capture_output=True, text=True
    )
    assert not ended.stderr
    fs.drained("/a", timeout=60)
    compression = "gzip" if "gzip" in outside else None
    assert fs.open("/a", "rb", compression=compression).read() == b"x" * 100


def test_a_file_that_cannot_be_closed_when_the_process_ends_is_told_and_takes_no_other_along(
    pool: Pool, target: Path, fs: PoolFileSystem
) -> None:
    script = """
import sys
from surgetank import PoolFileSystem
of = [PoolFileSystem(sys.argv[1], target=sys.argv[2], token=sys.argv[3], skip_instance_cache=True) for _ in range(2)]
files = [(fs, fs.open(f"/{number}{name}", "wb")) for number, fs in enumerate(of) for name in "abc"]
for fs, file in files:
    file.write(b"x")
    if file.path.endswith("b"):
        # Somebody has closed what is below.
        file.raw._native.abandon()
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, pool.address, str(target), str(pool.key)], check=True, capture_output=True, text=True
    )
    for number in range(2):
        assert f"/{number}b was open for writing, and is not closed" in ended.stderr
        for name in "ac":
            fs.drained(f"/{number}{name}", timeout=60)
            assert fs.cat_file(f"/{number}{name}") == b"x"


def test_waits_return_when_files_are_there(fs: PoolFileSystem, target: Path) -> None:
    for number in range(5):
        fs.pipe_file(f"/below/{number}", bytes([number]) * 100_000) if number else fs.mkdir("/below")
    fs.replicated("/below", timeout=60)
    fs.drained("/below", timeout=60)
    assert sorted(found.name for found in (target / "below").iterdir()) == ["1", "2", "3", "4"]
    assert fs.state("/below/1") == "drained"
    assert fs.state("/below") is None
    with pytest.raises(FileNotFoundError):
        fs.drained("/none")


def test_what_this_process_has_open_is_not_waited_for(fs: PoolFileSystem) -> None:
    with fs.open("/a", "wb") as file:
        file.write(b"a")
        assert fs.state("/a") == "staged"
        with pytest.raises(ValueError, match="close it first"):
            fs.drained("/")
        file.flush()
        assert fs.state("/a") == "replicated"
        fs.replicated("/a", timeout=60)
    fs.drained("/a", timeout=60)


def test_a_wait_for_a_target_that_takes_nothing_ends_with_its_time(own_pool: Pool) -> None:
    target = own_pool.target("stuck")
    fs = own_pool.filesystem(target)
    with fs.open("/a", "wb") as file:
        file.write(b"a")
        stand_still(fs, target)
    fs.replicated("/a", timeout=60)
    with pytest.raises(TimeoutError, match="and not drained after 0.3 s: wait longer"):
        fs.drained("/a", timeout=0.3)
    (target / ".surgetank").mkdir()
    fs.drained("/a", timeout=120)
    assert (target / "a").read_bytes() == b"a"
    fs.end()


def test_a_wait_for_managers_that_do_not_answer_ends_with_its_time(own_pool: Pool) -> None:
    # What the file system itself would wait for is more than a test may take.
    fs = own_pool.filesystem("stands", timeout=3600)
    fs.pipe_file("/a", b"a")
    own_pool.manager.send_signal(signal.SIGSTOP)
    for wait in (fs.replicated, fs.drained):
        with pytest.raises(TimeoutError):
            wait("/a", timeout=0.3)
    own_pool.manager.send_signal(signal.SIGCONT)
    fs.end()
