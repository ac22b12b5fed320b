"""Storage of torch.distributed.checkpoint, as torch calls it: with torch itself where it is installed, else with what stands in for it."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Pool

if importlib.util.find_spec("torch") is None:
    sys.path.insert(0, str(Path(__file__).parent / "standin"))

import torch
from torch.distributed.checkpoint import filesystem as of_torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from surgetank import PoolFileSystem
from surgetank.dcp import PoolReader, PoolWriter

with_torch = pytest.mark.skipif("standin" in torch.__version__, reason="torch is not installed")
ROWS, COLUMNS = 512, 1024


class Planner(SavePlanner):
    """Each rank has rows of one large tensor, and bytes of its own."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        self.state = state_dict

    def create_local_plan(self) -> SavePlan:
        rows = ROWS // self.ranks
        offsets, sizes = torch.Size((self.rank * rows, 0)), torch.Size((rows, COLUMNS))
        chunk, size = ChunkStorageMetadata(offsets, sizes), torch.Size((ROWS, COLUMNS))
        tensor = TensorWriteData(chunk, TensorProperties(), size)
        return SavePlan(
            [
                WriteItem(MetadataIndex("weights", offsets), WriteItemType.SHARD, tensor_data=tensor),
                WriteItem(MetadataIndex(f"step{self.rank}"), WriteItemType.BYTE_IO, bytes_io_data=BytesIOWriteData(8)),
            ]
        )

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, Metadata({})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(f"step of {self.rank}".encode())
        assert write_item.index.offset is not None
        rows = ROWS // self.ranks
        # A view: what else is in its storage is not written.
        return self.state["weights"].narrow(0, write_item.index.offset[0], rows)


class Loader(LoadPlanner):
    """Reads columns, however the rows were written."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.tensor = torch.from_numpy(numpy.zeros((ROWS, COLUMNS // 2), dtype="float32"))
        self.bytes: dict[str, bytes] = {}
        self.committed = 0

    def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
        pass

    def create_local_plan(self) -> LoadPlan:
        rows, none = ROWS // self.ranks, torch.Size((0,))
        items = []
        for rank in range(self.ranks):
            index = MetadataIndex("weights", torch.Size((rank * rows, 0)))
            into, lengths = torch.Size((rank * rows, 0)), torch.Size((rows, COLUMNS // 2))
            items.append(
                ReadItem(LoadItemType.TENSOR, index, into, index, torch.Size((0, COLUMNS // 2)), lengths)
            )
            step = MetadataIndex(f"step{rank}")
            items.append(ReadItem(LoadItemType.BYTE_IO, step, none, step, none, none))
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.bytes[read_item.dest_index.fqn] = value.read()

    def resolve_tensor(self, read_item: ReadItem) -> Any:
        return self.tensor.narrow(0, read_item.dest_offsets[0], read_item.lengths[0])

    def commit_tensor(self, read_item: ReadItem, tensor: Any) -> None:
        self.committed += 1


def weights(seed: int = 0) -> Any:
    return torch.from_numpy(numpy.random.default_rng(seed).random((ROWS, COLUMNS), dtype="float32"))


def save(writers: list[PoolWriter], state: Any, *, checkpoint_id: str | None = None, **options: Any) -> None:
    """What torch.distributed.checkpoint.save does, with all ranks in one process."""
    planners, plans = [], []
    for rank, writer in enumerate(writers):
        writer.reset(checkpoint_id)
        planner = Planner(rank, len(writers))
        planner.set_up_planner(state, writer.storage_meta(), rank == 0)
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True, **options)
        planners.append(planner)
        plans.append(writer.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    plans = writers[0].prepare_global_plan(plans)
    results = [
        writer.write_data(planner.finish_plan(plan), planner).wait()
        for writer, planner, plan in zip(writers, planners, plans, strict=True)
    ]
    writers[0].finish(metadata, results)


def load(reader: PoolReader, ranks: int) -> Loader:
    """What torch.distributed.checkpoint.load does."""
    reader.reset()
    loader = Loader(ranks)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_global_plan([reader.prepare_local_plan(loader.create_local_plan())])[0]
    reader.read_data(plan, loader).wait()
    return loader


@pytest.fixture
def options(pool: Pool, target: Path) -> dict[str, str]:
    return {"target": str(target), "token": str(pool.key)}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_checkpoint_of_several_ranks_is_saved_drained_and_loaded(
    pool: Pool, target: Path, options: dict[str, str], threads: int
) -> None:
    url, state = f"pool://{pool.address}/run/step-1", {"weights": weights()}
    # Ranks are processes with sessions of their own.
    writers = [PoolWriter(url, thread_count=threads, skip_instance_cache=True, **options) for _ in range(4)]
    with pytest.raises(RuntimeError, match="is not finished"):
        writers[0].drained()
    save(writers, state)
    for writer in writers:
        writer.replicated(timeout=60)
    # As torch's own writer says it.
    if hasattr(of_torch, "CURRENT_DCP_VERSION"):
        assert PoolReader(url, **options).read_metadata().version == of_torch.CURRENT_DCP_VERSION
    # Whoever asks, for all.
    writers[2].drained(timeout=60)
    at_target = {file.name for file in (target / "run" / "step-1").iterdir()}
    assert ".metadata" in at_target and {f"__{rank}_0.distcp" for rank in range(4)} <= at_target
    assert not [name for name in at_target if name.endswith(".tmp")]
    # Each rank has written its rows, and not the storage that they are a view of.
    assert sum(file.stat().st_size for file in (target / "run" / "step-1").iterdir()) < 2 * ROWS * COLUMNS * 4

    loader = load(PoolReader(url, **options), 4)
    assert (loader.tensor.numpy() == state["weights"].numpy()[:, COLUMNS // 2 :]).all()
    assert loader.bytes == {f"step{rank}": f"step of {rank}".encode() for rank in range(4)}
    assert loader.committed == 4


def test_a_checkpoint_is_written_over_in_one_step_or_not_at_all(pool: Pool, options: dict[str, str]) -> None:
    url, states = f"pool://{pool.address}/a", [{"weights": weights(seed)} for seed in range(2)]
    save([PoolWriter(url, **options)], states[0])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save([PoolWriter(url, overwrite=False, **options)], states[1])

    def has(state: Any) -> bool:
        return bool((load(PoolReader(url, **options), 1).tensor.numpy() == state["weights"].numpy()[:, COLUMNS // 2 :]).all())

    class Dies(PoolWriter):
        def finish(self, metadata: Metadata, results: Any) -> None:
            # The former one is whole until the last step.
            assert has(states[0])
            if dies:
                raise RuntimeError("on purpose")
            super().finish(metadata, results)

    for dies in (True, False):
        with pytest.warns(UserWarning, match="is written over"), contextlib.suppress(RuntimeError):
            save([Dies(url, **options)], states[1])
        assert has(states[0 if dies else 1])
    fs = PoolWriter(url, **options).fs
    # Nothing is left of the former ones.
    assert len(fs.ls("/a", detail=False)) == 2
    fs.drained("/a", timeout=60)


def test_a_rank_that_fails_in_the_midst_leaves_the_former_checkpoint_whole(pool: Pool, target: Path, options: dict[str, str]) -> None:
    url, former = f"pool://{pool.address}/a", {"weights": weights()}
    save([PoolWriter(url, **options) for _ in range(2)], former)
    fs = PoolWriter(url, **options).fs
    files = fs.ls("/a", detail=False)

    class Fails(PoolWriter):
        def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
            if planner.rank == 1:  # type: ignore[attr-defined]
                planner.resolve_data = lambda item: 1 // 0  # type: ignore[method-assign]
            return super().write_data(plan, planner)

    with pytest.warns(UserWarning, match="is written over"), pytest.raises(ZeroDivisionError):
        save([Fails(url, **options) for _ in range(2)], {"weights": weights(1)})
    loader = load(PoolReader(url, **options), 2)
    assert (loader.tensor.numpy() == former["weights"].numpy()[:, COLUMNS // 2 :]).all()
    # Of what failed, that rank has left nothing, and the other one a whole file.
    assert len([path for path in fs.ls("/a", detail=False) if path not in files]) == 1
    fs.drained("/a", timeout=60)
    # The next one removes what was left.
    with pytest.warns(UserWarning, match="is written over"):
        save([PoolWriter(url, **options) for _ in range(2)], {"weights": weights(2)})
    assert len(fs.ls("/a", detail=False)) == 3


def test_metadata_that_cannot_be_written_are_not_there(pool: Pool, options: dict[str, str], fs: PoolFileSystem) -> None:
    class Unnamed(PoolWriter):
        def storage_meta(self) -> Any:
            # Nothing can write that.
            return lambda: None

    with pytest.raises((AttributeError, pickle.PicklingError)):
        save([Unnamed(f"pool://{pool.address}/a", **options)], {"weights": weights()})
    assert fs.ls("/a", detail=False) == ["/a/__0_0.distcp"]


def test_a_wait_is_for_the_save_that_was_begun_and_no_former_one(pool: Pool, options: dict[str, str]) -> None:
    url = f"pool://{pool.address}/a"
    save([PoolWriter(url, **options) for _ in range(2)], {"weights": weights()})
    # Whoever has saved nothing waits for what is there.
    PoolWriter(url, **options).drained(timeout=60)
    writers = [PoolWriter(url, **options) for _ in range(2)]
    asked = []

    class Looks(PoolWriter):
        def finish(self, metadata: Metadata, results: Any) -> None:
            for writer in (self, writers[1]):
                for wait in (writer.replicated, writer.drained):
                    with pytest.raises(RuntimeError, match="is not finished"):
                        wait(timeout=60)
                    asked.append(wait)
            super().finish(metadata, results)

    writers[0] = Looks(url, **options)
    with pytest.warns(UserWarning, match="is written over"):
        save(writers, {"weights": weights(1)})
    assert len(asked) == 4
    for writer in writers:
        writer.drained(timeout=60)


def test_another_checkpoint_is_named_by_its_id(pool: Pool, options: dict[str, str]) -> None:
    writer = PoolWriter(f"pool://{pool.address}/a", **options)
    for name in (f"pool://{pool.address}/b/1", "/b/2"):
        save([writer], {"weights": weights()}, checkpoint_id=name)
        assert writer.checkpoint_id == f"pool://{pool.address}/b/{name[-1]}"
    assert writer.fs.glob("/**/.metadata") == ["/b/1/.metadata", "/b/2/.metadata"]
    assert PoolWriter.validate_checkpoint_id("pool://a/b") and not PoolReader.validate_checkpoint_id("/a/b")
    with pytest.raises(ValueError, match="names no pool"):
        PoolWriter("/a", **options)


def test_without_a_coordinator_each_rank_has_its_own_metadata(pool: Pool, options: dict[str, str]) -> None:
    state = {"weights": weights()}
    for rank in range(2):
        writer = PoolWriter(f"pool://{pool.address}/a", **options)
        planner = Planner(rank, 2)
        planner.set_up_planner(state)
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=False)
        plan = writer.prepare_local_plan(planner.create_local_plan())
        results = writer.write_data(plan, planner).wait()
        writer.finish(Metadata({}), [results])
        writer.drained(timeout=60)
    found = writer.fs.ls("/a", detail=False)
    assert found == ["/a/__0.metadata", "/a/__0_0.distcp", "/a/__1.metadata", "/a/__1_0.distcp"]
    reader = PoolReader(f"pool://{pool.address}/a", **options)
    assert set(reader.read_metadata(rank=1).storage_data) == {
        MetadataIndex("weights", torch.Size((ROWS // 2, 0))),
        MetadataIndex("step1"),
    }


def test_ranks_without_a_coordinator_do_not_wait_for_each_other(pool: Pool, options: dict[str, str]) -> None:
    url, state = f"pool://{pool.address}/a", {"weights": weights()}

    def save_alone(rank: int) -> PoolWriter:
        writer, planner = PoolWriter(url, overwrite=False, **options), Planner(rank, 2)
        writer.reset()
        planner.set_up_planner(state)
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=False)
        plan = writer.prepare_local_plan(planner.create_local_plan())
        writer.finish(Metadata({}), [writer.write_data(plan, planner).wait()])
        return writer

    # One is ready before the other begins, and has nothing that is in the other's way.
    for rank in range(2):
        save_alone(rank).drained(timeout=60)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        save_alone(1)
    # All ranks together would write over files of each.
    with pytest.raises(FileExistsError, match="metadata of its own"):
        save([PoolWriter(url, **options)], state)
    save([PoolWriter(f"pool://{pool.address}/b", **options)], state)
    url = f"pool://{pool.address}/b"
    with pytest.raises(FileExistsError, match="with one file of metadata"):
        save_alone(0)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_of_a_writing_thread_is_the_saves(pool: Pool, options: dict[str, str], threads: int) -> None:
    class Fails(Planner):
        def resolve_data(self, write_item: WriteItem) -> Any:
            if write_item.type == WriteItemType.BYTE_IO:
                raise RuntimeError("on purpose")
            return super().resolve_data(write_item)

    writer = PoolWriter(f"pool://{pool.address}/a", thread_count=threads, **options)
    planner = Fails(0, 1)
    planner.set_up_planner({"weights": weights()})
    plan = writer.prepare_global_plan([writer.prepare_local_plan(planner.create_local_plan())])[0]
    with pytest.raises(RuntimeError, match="on purpose"):
        writer.write_data(plan, planner).wait()
    with pytest.raises(RuntimeError, match="is not finished"):
        writer.replicated()


def test_a_checkpoint_that_cannot_be_read_says_why(pool: Pool, options: dict[str, str], fs: PoolFileSystem) -> None:
    reader = PoolReader(f"pool://{pool.address}/a", **options)
    with pytest.raises(FileNotFoundError, match="metadata"):
        reader.read_metadata()
    save([PoolWriter(f"pool://{pool.address}/a", **options)], {"weights": weights()})
    metadata = reader.read_metadata()
    for info in metadata.storage_data.values():
        info.transform_descriptors = ("zstd",)
    reader.set_up_storage_reader(metadata, True)
    with pytest.raises(ValueError, match="transformed by an extension"):
        reader.read_data(Loader(1).create_local_plan(), Loader(1))
    for info in metadata.storage_data.values():
        info.transform_descriptors = None
    with fs.open("/a/__0_0.distcp", "r+b") as file:
        file.truncate(fs.info("/a/__0_0.distcp")["size"] - 1)
    with pytest.raises(OSError, match="1 bytes too early") as told:
        reader.read_data(Loader(1).create_local_plan(), Loader(1))
    assert told.value.errno == errno.EIO
    metadata.storage_data = None
    with pytest.raises(ValueError, match="do not say where its data are"):
        reader.set_up_storage_reader(metadata, True)


@with_torch
def test_torch_saves_and_loads_and_its_own_reader_reads_the_target(
    pool: Pool, target: Path, options: dict[str, str]
) -> None:
    import torch.distributed.checkpoint as dcp

    url = f"pool://{pool.address}/run/step-1"
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}
    writer = PoolWriter(url, **options)
    dcp.save(state, storage_writer=writer, no_dist=True)
    writer.replicated(timeout=60)
    writer.drained(timeout=60)

    def empty() -> dict[str, Any]:
        other = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256))
        like = torch.optim.Adam(other.parameters())
        other(torch.randn(4, 256)).sum().backward()
        like.step()
        return {"model": other.state_dict(), "optimizer": like.state_dict(), "step": 0}

    for reader in (PoolReader(url, **options), dcp.FileSystemReader(target / "run" / "step-1")):
        found = empty()
        dcp.load(found, storage_reader=reader, no_dist=True)
        assert found["step"] == 7
        assert all(torch.equal(found["model"][name], of) for name, of in state["model"].items())
        for number, moments in state["optimizer"]["state"].items():
            assert all(torch.equal(found["optimizer"]["state"][number][name], of) for name, of in moments.items())
    # And the other way: what torch has written at the target is read through the pool.
    dcp.save(state, storage_writer=dcp.FileSystemWriter(target / "theirs"), no_dist=True)
    found = empty()
    dcp.load(found, storage_reader=PoolReader(f"pool://{pool.address}/theirs", **options), no_dist=True)
    assert all(torch.equal(found["model"][name], of) for name, of in state["model"].items())


@with_torch
def test_torch_saves_asynchronously(pool: Pool, target: Path, options: dict[str, str]) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        writer = PoolWriter(f"pool://{pool.address}/async", **options)
        state = {"weights": torch.randn(1024, 1024)}
        dcp.async_save(state, storage_writer=writer).result()
        writer.drained(timeout=60)
        found = {"weights": torch.zeros(1024, 1024)}
        dcp.load(found, storage_reader=dcp.FileSystemReader(target / "async"))
        assert torch.equal(found["weights"], state["weights"])
    finally:
        dist.destroy_process_group()


@with_torch
def test_torchs_own_save_writes_files_of_the_pool(fs: PoolFileSystem) -> None:
    state = {"weights": torch.randn(512, 512)}
    with fs.open("/a.pt", "wb") as file:
        torch.save(state, file)
    with fs.open("/a.pt", "rb") as file:
        assert torch.equal(torch.load(file, weights_only=True)["weights"], state["weights"])
