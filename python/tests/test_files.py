"""What a program reads is what it has written, whatever it does in between."""

from __future__ import annotations

import contextlib
import errno
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy
import pytest
from conftest import Pool
from fsspec.callbacks import Callback

from surgetank import PoolFileSystem, files

MIB = 1 << 20


def test_urls_open_files_of_the_pool(pool: Pool, target: Path) -> None:
    url = f"pool://{pool.address}/a.txt"
    options = {"target": str(target), "token": str(pool.key)}
    with fsspec.open(url, "w", **options) as file:
        file.write("first\nsecond\n")
    with fsspec.open(url, "r", **options) as file:
        assert file.readlines() == ["first\n", "second\n"]
    fs, path = fsspec.url_to_fs(url, **options)
    assert isinstance(fs, PoolFileSystem)
    assert (path, fs.unstrip_protocol(path)) == ("/a.txt", url)
    # One session of a process for all who say the same.
    assert fsspec.url_to_fs(url, **options)[0] is fs
    fs.drained("/a.txt", timeout=60)
    assert (target / "a.txt").read_text() == "first\nsecond\n"


def test_the_target_may_be_said_by_the_environment(pool: Pool, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURGETANK_POOL_TARGET", str(target))
    monkeypatch.setenv("SURGETANK_POOL_TOKEN", token(pool, target).strip())
    fs = PoolFileSystem(pool.address, skip_instance_cache=True)
    fs.pipe_file("/a", b"a")
    assert fs.cat_file("a") == b"a"
    fs.end()


def test_every_mode_does_what_its_name_says(fs: PoolFileSystem) -> None:
    with fs.open("/a", "xb") as file:
        file.write(b"0123")
    with pytest.raises(FileExistsError):
        fs.open("/a", "xb")
    with fs.open("/a", "ab") as file:
        assert file.tell() == 4
        file.write(b"45")
        file.seek(0)
        file.write(b"67")
    assert fs.cat_file("/a") == b"01234567"
    with fs.open("/a", "r+b") as file:
        assert file.read(2) == b"01"
        file.write(b"__")
        file.seek(-1, io.SEEK_END)
        assert (file.read(), file.size if hasattr(file, "size") else 8) == (b"7", 8)
        file.truncate(6)
    assert fs.cat_file("/a") == b"01__45"
    with fs.open("/a", "rb") as file:
        assert (file.size, file.seek(2), file.read(2), file.writable()) == (6, 2, b"__", False)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    with fs.open("/a", "w+b") as file:
        assert file.read() == b""
        file.write(b"new")
        file.seek(0)
        assert file.read() == b"new"
    assert fs.cat_file("/a") == b"new"
    with fs.open("/b", "ab") as file:
        file.write(b"made")
    assert fs.cat_file("/b") == b"made"
    with pytest.raises(FileNotFoundError):
        fs.open("/c", "r+b")
    with pytest.raises(ValueError, match="mode is"):
        fs.open("/a", "qb")
    with fs.open("/t", "x", encoding="utf-8") as file:
        file.write("äöü\n")
    with fs.open("/t", "a", encoding="utf-8") as file:
        file.write("ß")
    assert fs.read_text("/t", encoding="utf-8") == "äöü\nß"


def test_a_file_that_is_written_anew_is_as_it_was_until_the_first_commit(fs: PoolFileSystem) -> None:
    fs.pipe_file("/a", b"former")
    with fs.open("/a", "wb") as file:
        file.write(b"new")
        assert fs.cat_file("/a") == b"former"
        assert fs.state("/a") == "staged"
        file.flush()
        assert fs.cat_file("/a") == b"new"


def test_what_is_open_for_reading_is_as_it_was_when_it_was_opened_or_newer(fs: PoolFileSystem) -> None:
    fs.pipe_file("/a", b"a" * 100)
    with fs.open("/a", "rb") as file, fs.open("/a", "ab") as more:
        more.write(b"b")
        more.flush()
        assert file.read() == b"a" * 100
    assert fs.cat_file("/a")[100:] == b"b"


def test_the_process_that_has_a_file_open_for_writing_opens_it_once(fs: PoolFileSystem) -> None:
    with fs.open("/a", "wb"), pytest.raises(OSError, match="close it there first") as told:
        fs.open("/a", "wb")
    assert told.value.errno == errno.EBUSY
    fs.pipe_file("/a", b"free again")


def test_random_writes_reads_and_truncations_agree_with_a_model(fs: PoolFileSystem) -> None:
    """Against a plain array of bytes, across the ends of chunks and windows."""
    for seed in range(6):
        chance, path = random.Random(seed), f"/model{seed}"
        model = bytearray(chance.randbytes(chance.choice([0, 1, MIB, 9 * MIB + 5])))
        fs.pipe_file(path, bytes(model))
        file = fs.open(path, "r+b")
        for _ in range(60):
            at = chance.randrange(len(model) + MIB // 2)
            match chance.randrange(8):
                case 0 | 1 | 2:
                    data = chance.randbytes(chance.choice([1, 4096, MIB - 1, MIB, 2 * MIB + 3]))
                    file.seek(at)
                    file.write(data)
                    if at > len(model):
                        model.extend(bytes(at - len(model)))
                    model[at : at + len(data)] = data
                case 3 | 4:
                    length = chance.choice([0, 1, 5000, MIB + 1, 20 * MIB])
                    file.seek(at)
                    assert file.read(length) == model[at : at + length]
                case 5:
                    file.truncate(at)
                    if at > len(model):
                        model.extend(bytes(at - len(model)))
                    del model[at:]
                case 6:
                    file.flush()
                    assert fs.cat_file(path) == model
                case 7:
                    file.close()
                    file = fs.open(path, "r+b")
        file.close()
        assert fs.cat_file(path) == model
        assert fs.info(path)["size"] == len(model)


def test_arrays_and_large_pieces_are_written_as_they_are(fs: PoolFileSystem) -> None:
    array = numpy.arange(5 << 20, dtype="float64")
    with fs.open("/a.npy", "wb") as file:
        numpy.save(file, array)
    with fs.open("/a.npy", "rb") as file:
        assert (numpy.load(file) == array).all()
    with fs.open("/raw", "wb") as file:
        # A buffer of something else than bytes, and one that is not aligned with chunks.
        file.write(array)
        file.write(memoryview(array.tobytes())[3:])
    assert fs.cat_file("/raw") == array.tobytes() + array.tobytes()[3:]
    into = bytearray(array.nbytes)
    with fs.open("/raw", "rb") as file:
        assert file.readinto(into) == len(into)
    assert into == array.tobytes()


def test_ranges_are_read_as_slices_are(fs: PoolFileSystem) -> None:
    data = random.Random(1).randbytes(3 * MIB + 7)
    fs.pipe_file("/a", data)
    fs.pipe_file("/empty", b"")
    slices = [(None, None), (0, 10), (MIB - 3, MIB + 3), (-5, None), (2 * MIB, -1), (len(data), len(data) + 9), (7, 3)]
    for start, end in slices:
        assert fs.cat_file("/a", start, end) == data[start:end]
    found = fs.cat_ranges(["/a"] * len(slices), [s for s, _ in slices], [e for _, e in slices])
    assert found == [data[start:end] for start, end in slices]
    found = fs.cat_ranges(["/a", "/none", "/empty"], 0, [4, 4, 4])
    assert (found[0], type(found[1]), found[2]) == (data[:4], FileNotFoundError, b"")
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["/a", "/none"], [0, 0], [1, 1], on_error="raise")
    assert fs.cat(["/a", "/empty"]) == {"/a": data, "/empty": b""}


def test_a_transaction_shows_all_of_its_files_or_none(fs: PoolFileSystem) -> None:
    fs.pipe_file("/b", b"former")
    with fs.transaction:
        for name in ("/a", "/b"):
            with fs.open(name, "wb") as file:
                file.write(b"new")
        assert not fs.exists("/a")
        assert fs.cat_file("/b") == b"former"
    assert fs.cat(["/a", "/b"]) == {"/a": b"new", "/b": b"new"}
    with pytest.raises(RuntimeError, match="on purpose"), fs.transaction:
        with fs.open("/c", "wb") as file:
            file.write(b"never")
        raise RuntimeError("on purpose")
    assert fs.ls("/", detail=False) == ["/a", "/b"]


def test_a_transaction_has_text_and_compressed_files_whole(fs: PoolFileSystem) -> None:
    with fs.transaction:
        text, packed = fs.open("/text", "w"), fs.open("/packed", "wb", compression="gzip")
        text.write("x" * 100)
        packed.write(b"y" * 100)
    assert fs.cat_file("/text") == b"x" * 100
    assert fs.open("/packed", "rb", compression="gzip").read() == b"y" * 100
    with pytest.raises(RuntimeError, match="on purpose"), fs.transaction:
        text = fs.open("/never", "w")
        text.write("x" * 100)
        raise RuntimeError("on purpose")
    assert fs.ls("/", detail=False) == ["/packed", "/text"]


def test_a_transaction_leaves_a_file_as_it_was_whose_block_has_raised(fs: PoolFileSystem) -> None:
    fs.pipe_file("/a", b"former")
    with fs.transaction:
        with contextlib.suppress(RuntimeError), fs.open("/a", "wb") as file:
            file.write(b"half")
            raise RuntimeError
        with fs.open("/b", "wb") as file:
            file.write(b"new")
    assert fs.cat(["/a", "/b"]) == {"/a": b"former", "/b": b"new"}
    assert fs.ls("/", detail=False) == ["/a", "/b"]


def test_what_cannot_be_opened_leaves_the_file_as_it_was(fs: PoolFileSystem) -> None:
    fs.pipe_file("/a", b"former")
    with pytest.raises(LookupError):
        fs.open("/a", "w", encoding="none such")
    with pytest.raises(ValueError):
        fs.open("/a", "wb", compression="none such")
    assert fs.cat_file("/a") == b"former"
    fs.pipe_file("/a", b"free")


def test_a_transaction_refuses_what_it_cannot_take_back(fs: PoolFileSystem) -> None:
    fs.pipe_file("/a", b"former")
    for mode in ("ab", "r+b", "w+b", "x+b"):
        with pytest.raises(NotImplementedError, match="modes w and x"), fs.transaction, fs.open("/a", mode) as file:
            file.write(b"new")
    assert fs.cat_file("/a") == b"former"
    assert fs.ls("/", detail=False) == ["/a"]


def test_a_new_file_of_a_transaction_replaces_nothing(fs: PoolFileSystem) -> None:
    with pytest.raises(FileExistsError), fs.transaction:
        with fs.open("/a", "xb") as file:
            file.write(b"late")
        # Somebody else makes it meanwhile.
        fs.open("/a", "xb", autocommit=True).close()
        with fs.open("/a", "r+b", autocommit=True) as file:
            file.write(b"first")
    assert fs.cat_file("/a") == b"first"
    assert fs.ls("/", detail=False) == ["/a"]


@pytest.mark.parametrize("compression", ["gzip", "bz2", "xz", "zip"])
@pytest.mark.parametrize("mode", ["wb", "wt"])
def test_a_compressed_file_is_committed_by_its_close(fs: PoolFileSystem, compression: str, mode: str) -> None:
    file = fs.open("/a", mode, compression=compression)
    file.write("x" * 100 if mode == "wt" else b"x" * 100)
    file.close()
    fs.drained("/a", timeout=60)
    with fs.open("/a", "rt", compression=compression) as packed:
        assert packed.read() == "x" * 100


#: How a program writes a file anew in a block.
BLOCKS: dict[str, Callable[[PoolFileSystem, str, str], Any]] = {
    "w": lambda fs, url, path: fs.open(path, "wb"),
    "w+": lambda fs, url, path: fs.open(path, "w+b"),
    "text": lambda fs, url, path: fs.open(path, "w"),
    "gzip": lambda fs, url, path: fs.open(path, "wb", compression="gzip"),
    "bz2": lambda fs, url, path: fs.open(path, "wb", compression="bz2"),
    "text in gzip": lambda fs, url, path: fs.open(path, "wt", compression="gzip"),
    "fsspec.open": lambda fs, url, path: fsspec.open(url + path, "wb"),
    "fsspec.open of text": lambda fs, url, path: fsspec.open(url + path, "w"),
    "fsspec.open of gzip": lambda fs, url, path: fsspec.open(url + path, "wb", compression="gzip"),
    "fsspec.open_files": lambda fs, url, path: fsspec.open_files([url + path], "wb"),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_that_raises_leaves_the_file_as_it_was(
    fs: PoolFileSystem, pool: Pool, target: Path, monkeypatch: pytest.MonkeyPatch, block: str
) -> None:
    monkeypatch.setenv("SURGETANK_POOL_TARGET", str(target))
    monkeypatch.setenv("SURGETANK_POOL_TOKEN", token(pool, target).strip())
    fs.pipe_file("/good", b"former")
    url = f"pool://{pool.address}"

    def write(path: str, raises: bool) -> None:
        with BLOCKS[block](fs, url, path) as found:
            file = found[0] if isinstance(found, list) else found
            data = b"half" * 1_000_000
            file.write(data.decode() if "text" in block else data)
            if raises:
                raise RuntimeError("on purpose")

    for path in ("/good", "/new"):
        with pytest.raises(RuntimeError, match="on purpose"):
            write(path, raises=True)
    assert fs.cat_file("/good") == b"former"
    assert fs.ls("/", detail=False) == ["/good"]
    fs.drained("/good", timeout=60)
    assert (target / "good").read_bytes() == b"former"
    # It can be written again, also where an error is handled.
    try:
        raise RuntimeError("another")
    except RuntimeError:
        write("/good", raises=False)
    compression = next((name for name in ("gzip", "bz2") if name in block), None)
    assert fs.open("/good", "rb", compression=compression).read() == b"half" * 1_000_000
    fsspec.url_to_fs(url)[0].end()


def test_what_was_flushed_or_changed_stays_when_a_block_raises(fs: PoolFileSystem) -> None:
    fs.pipe_file("/log", b"first\n")
    with pytest.raises(RuntimeError), fs.open("/log", "ab") as file:
        file.write(b"second\n")
        raise RuntimeError
    assert fs.cat_file("/log") == b"first\nsecond\n"
    with pytest.raises(RuntimeError), fs.open("/new", "wb") as file:
        file.write(b"flushed")
        file.flush()
        file.write(b"not flushed")
        raise RuntimeError
    assert fs.cat_file("/new") == b"flushed"


def test_a_copy_that_fails_leaves_the_file_as_it_was(
    fs: PoolFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.pipe({"/good": b"former", "/source": b"s" * (20 << 20)})
    (tmp_path / "local").write_bytes(b"l" * (20 << 20))

    class Fails(Callback):
        def relative_update(self, inc: int = 1) -> None:
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fs.put_file(str(tmp_path / "local"), "/good", callback=Fails())
    with pytest.raises(TypeError):
        fs.pipe_file("/good", "no bytes")
    read_at = files.RawFile.readinto
    monkeypatch.setattr(files.RawFile, "readinto", lambda self, into: 1 // 0 if self.tell() else read_at(self, into))
    with pytest.raises(ZeroDivisionError):
        fs.cp_file("/source", "/good")
    assert fs.cat_file("/good") == b"former"


def test_a_long_copy_that_fails_leaves_the_file_as_it_was(fs: PoolFileSystem, target: Path, tmp_path: Path) -> None:
    """Though the pool commits what it cannot keep, before all is written."""
    long = random.Random(3).randbytes(40 * MIB)
    (tmp_path / "local").write_bytes(long)

    class Fails(Callback):
        written = 0

        def relative_update(self, inc: int = 1) -> None:
            self.written += inc
            if self.written > len(long) // 2:
                # As the pool does by itself when more is written than it can store meanwhile.
                for file in fs._session.open_files():
                    file.raw._native.sync()
                raise RuntimeError("on purpose")

    fs.pipe_file("/good", b"former")
    with pytest.raises(RuntimeError, match="on purpose"):
        fs.put_file(str(tmp_path / "local"), "/good", callback=Fails())
    assert fs.cat_file("/good") == b"former"
    assert fs.ls("/", detail=False) == ["/good"]
    fs.put_file(str(tmp_path / "local"), "/good")
    assert fs.cat_file("/good") == long
    fs.pipe_file("/good", long[:-1])
    fs.cp_file("/good", "/copy")
    fs.cp_file("/good", "/copy")
    assert fs.cat_file("/good") == fs.cat_file("/copy") == long[:-1]
    with pytest.raises(FileExistsError):
        fs.put_file(str(tmp_path / "local"), "/good", mode="create")
    fs.drained("/", timeout=60)
    assert (target / "good").read_bytes() == long[:-1]
    assert fs.ls("/", detail=False) == ["/copy", "/good"]


def test_the_target_is_read_and_nothing_becomes_the_pools_by_that(fs: PoolFileSystem, target: Path) -> None:
    data = random.Random(2).randbytes(11 * MIB)
    (target / "below").mkdir()
    (target / "below" / "theirs").write_bytes(data)
    assert fs.find("/") == ["/below/theirs"]
    assert fs.cat_file("/below/theirs") == data
    with fs.open("/below/theirs") as file:
        file.seek(5 * MIB)
        assert file.read() == data[5 * MIB :]
    assert (fs.info("/below/theirs")["ino"], fs.state("/below/theirs")) == (None, "drained")
    with fs.open("/below/theirs", "ab") as file:
        file.write(b"!")
    fs.drained("/below", timeout=60)
    assert (target / "below" / "theirs").read_bytes() == data + b"!"


def test_links_are_told_and_not_followed(fs: PoolFileSystem, target: Path) -> None:
    (target / "file").write_bytes(b"a")
    (target / "link").symlink_to("file")
    info = fs.info("/link")
    assert (info["type"], info["destination"]) == ("link", "file")
    for call in (fs.open, fs.replicated, fs.drained):
        with pytest.raises(OSError, match="name the file that it points to"):
            call("/link")


def token(pool: Pool, target: Path, *options: str) -> str:
    made = pool.run("pool", "token", "--target", str(target), "--directory", str(pool.key.parent), *options)
    assert made.returncode == 0, made.stderr
    return made.stdout
