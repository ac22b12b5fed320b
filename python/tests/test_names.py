"""Names, and fsspec's own tests of file systems."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec.tests.abstract as abstract
import pytest
from conftest import Pool
from fsspec.implementations.local import LocalFileSystem, make_path_posix

from surgetank import PoolFileSystem


def test_names_are_made_listed_moved_and_removed(fs: PoolFileSystem, target: Path) -> None:
    fs.makedirs("/a/b/c")
    fs.makedirs("/a/b", exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.makedirs("/a/b")
    with pytest.raises(FileExistsError):
        fs.mkdir("/a")
    with pytest.raises(FileNotFoundError):
        fs.mkdir("/x/y", create_parents=False)
    fs.mkdir("/x/y")
    for name in ("/a/1", "/a/b/2", "/a/b/c/3"):
        fs.pipe_file(name, name.encode())
    assert fs.ls("/a", detail=False) == ["/a/1", "/a/b"]
    assert fs.ls("/a/1", detail=False) == ["/a/1"]
    assert fs.find("/a") == ["/a/1", "/a/b/2", "/a/b/c/3"]
    assert fs.glob("/a/**/[23]") == ["/a/b/2", "/a/b/c/3"]
    assert fs.du("/a") == 4 + 6 + 8
    info = fs.info("/a/1")
    assert (info["type"], info["size"], info["name"]) == ("file", 4, "/a/1")
    assert fs.isdir("/a") and fs.isfile("/a/1") and not fs.exists("/a/1/none") and not fs.exists("/none")
    assert abs(fs.modified("/a/1").timestamp() - info["mtime"]) < 1e-3

    fs.mv("/a/b", "/moved")
    assert fs.find("/moved") == ["/moved/2", "/moved/c/3"]
    fs.mv("/a/1", "/moved")
    assert fs.cat_file("/moved/1") == b"/a/1"
    # In the place of what is there, as `os.replace` does.
    fs.mv("/moved/1", "/moved/2")
    assert fs.cat_file("/moved/2") == b"/a/1"
    with pytest.raises(OSError, match="entries"):
        fs.rmdir("/moved")
    with pytest.raises(IsADirectoryError):
        fs.rm("/moved")
    fs.rm("/moved", recursive=True)
    fs.rm(["/x", "/a"], recursive=True)
    assert fs.ls("/", detail=False) == []
    fs.touch("/t")
    assert fs.info("/t")["size"] == 0
    with pytest.raises(NotImplementedError):
        fs.touch("/t", truncate=False)
    fs.drained("/", timeout=60)
    assert [found.name for found in target.iterdir() if found.name != ".surgetank"] == ["t"]


def test_files_are_put_and_got(fs: PoolFileSystem, tmp_path: Path) -> None:
    data = bytes(range(256)) * 50_000
    (tmp_path / "from" / "below").mkdir(parents=True)
    (tmp_path / "from" / "a").write_bytes(data)
    (tmp_path / "from" / "below" / "b").write_bytes(b"b")
    fs.put(str(tmp_path / "from"), "/to", recursive=True)
    assert fs.find("/to") == ["/to/a", "/to/below/b"]
    fs.get("/to", str(tmp_path / "back"), recursive=True)
    assert (tmp_path / "back" / "a").read_bytes() == data
    assert (tmp_path / "back" / "below" / "b").read_bytes() == b"b"
    with pytest.raises(FileExistsError):
        fs.put_file(str(tmp_path / "from" / "a"), "/to/a", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe_file("/to/a", b"", mode="create")


def test_what_cannot_be_looked_at_is_an_error_and_not_empty(fs: PoolFileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for directory in ("/a/b", "/c"):
        fs.makedirs(directory)
    fs.pipe({"/a/1": b"1", "/a/b/2": b"2", "/c/3": b"3"})
    ls, info = PoolFileSystem.ls, PoolFileSystem.info

    def fails(of: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def call(self: PoolFileSystem, path: str, *args: Any, **kwargs: Any) -> Any:
            if self._strip_protocol(path) == "/a/b":
                raise error
            return of(self, path, *args, **kwargs)

        return call

    monkeypatch.setattr(PoolFileSystem, "ls", fails(ls, TimeoutError("on purpose")))
    calls: list[Callable[[], object]] = [
        lambda: fs.find("/"),
        lambda: fs.glob("/**"),
        lambda: fs.du("/"),
        lambda: fs.get("/a", str(tmp_path / "got"), recursive=True),
        lambda: fs.cp("/a", "/copy", recursive=True),
        lambda: fs.rm("/a", recursive=True),
    ]
    for call in calls:
        with pytest.raises(TimeoutError, match="on purpose"):
            call()
    # What somebody has removed meanwhile is left out.
    monkeypatch.setattr(PoolFileSystem, "ls", fails(ls, FileNotFoundError("on purpose")))
    assert fs.find("/") == ["/a/1", "/c/3"]
    monkeypatch.setattr(PoolFileSystem, "ls", ls)
    monkeypatch.setattr(PoolFileSystem, "info", fails(info, TimeoutError("on purpose")))
    for look in (fs.isdir, fs.isfile):
        with pytest.raises(TimeoutError, match="on purpose"):
            look("/a/b")


def test_a_target_that_is_gone_has_no_directories_made(fs: PoolFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def make_directory(self, path: str) -> None:
            raise FileNotFoundError("on purpose")

    monkeypatch.setattr(fs._session, "_client", Gone())
    with pytest.raises(FileNotFoundError, match="on purpose"):
        fs.makedirs("/a/b", exist_ok=True)
    monkeypatch.undo()


def test_paths_of_urls_are_names_below_the_target() -> None:
    strip = PoolFileSystem._strip_protocol
    assert strip("pool://h:1,i:2/a//b/") == "/a/b"
    assert (strip("pool://h"), strip("a/./b"), strip("/"), strip("")) == ("/", "/a/b", "/", "/")
    assert strip(["pool://h/a", "b"]) == ["/a", "/b"]
    with pytest.raises(ValueError, match="is no name in a pool"):
        strip("/a/../b")
    assert PoolFileSystem._get_kwargs_from_urls("pool://h:1,i:2/a") == {"managers": "h:1,i:2"}
    assert PoolFileSystem._get_kwargs_from_urls("/a") == {}


def test_a_file_system_is_pickled_by_its_options(fs: PoolFileSystem) -> None:
    fs.pipe_file("/a", b"a")
    again = pickle.loads(pickle.dumps(fs))
    assert (again.managers, again.target) == (fs.managers, fs.target)
    assert again.cat_file("/a") == b"a"


class Fixtures(abstract.AbstractFixtures):
    """What fsspec's tests are run on."""

    @pytest.fixture
    def fs(self, pool: Pool, target: Path) -> Iterator[PoolFileSystem]:
        filesystem = pool.filesystem(target, auto_mkdir=True)
        yield filesystem
        filesystem.end()

    @pytest.fixture
    def fs_path(self) -> str:
        return "/tests"

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_path(self, tmp_path: Path) -> str:
        return str(make_path_posix(str(tmp_path)))


class TestCopyOfFsspec(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGetOfFsspec(abstract.AbstractGetTests, Fixtures):
    pass


class TestPutOfFsspec(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpenOfFsspec(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipeOfFsspec(abstract.AbstractPipeTests, Fixtures):
    pass
