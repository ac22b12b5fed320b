"""A staging pool as storage of ``torch.distributed.checkpoint``.

``PoolWriter`` and ``PoolReader`` write and read what torch's own ``FileSystemWriter`` and ``FileSystemReader`` do: at the pool's target a
checkpoint is one of these. A save returns when as many benefactors have the checkpoint as the mount's durability says; what
``PoolWriter.drained`` waits for goes on in the background, also when this process ends.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import pickle
import posixpath
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fsspec.core import url_to_fs

from .filesystem import PoolFileSystem

try:
    import torch
    from torch.distributed.checkpoint import filesystem as of_torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
    from torch.distributed.checkpoint.planner import (
        LoadItemType,
        LoadPlan,
        LoadPlanner,
        ReadItem,
        SavePlan,
        SavePlanner,
        WriteItem,
        WriteItemType,
    )
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
    from torch.futures import Future
except ImportError as error:
    raise ImportError(
        f"surgetank.dcp needs torch 2.4 or newer with torch.distributed, and nothing else of surgetank does: install torch ({error})"
    ) from error

__all__ = ["PoolReader", "PoolWriter"]

_METADATA = ".metadata"
_SUFFIX = ".distcp"


@dataclasses.dataclass(frozen=True)
class _Names:
    """What a rank's plan has for its storage: how the names of its files begin, and the save that they belong to."""

    begins: str
    save_id: str


class _Storage:
    """Where a checkpoint is."""

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._options = options
        self.rank: int | None = None
        self.use_collectives = True
        self._place(path)

    def _place(self, path: str | os.PathLike[str]) -> None:
        text = os.fspath(path)
        if not text.startswith("pool://"):
            # Another checkpoint of the pool that is known.
            if not hasattr(self, "fs"):
                raise ValueError(f"{text} names no pool: write pool://HOST:PORT/PATH")
            self.path = self.fs._strip_protocol(text)
            return
        fs, self.path = url_to_fs(text, **self._options)
        self.fs: PoolFileSystem = fs

    @property
    def checkpoint_id(self) -> str:
        """Where this checkpoint is."""
        return self.fs.unstrip_protocol(self.path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it names a place in a pool."""
        return os.fspath(checkpoint_id).startswith("pool://")

    def _at(self, name: str) -> str:
        return posixpath.join(self.path, name)

    def _metadata(self, rank: int | None) -> str:
        return self._at(_METADATA if rank is None else f"__{rank}{_METADATA}")

    def _set_up(self, options: dict[str, Any]) -> None:
        self.rank = options.get("rank")
        self.use_collectives = options.get("use_collectives", True)

    @property
    def _own_rank(self) -> int | None:
        """The rank whose metadata are in a file of their own, if there is no coordinator."""
        return None if self.use_collectives else self.rank


class PoolWriter(_Storage, StorageWriter):  # type: ignore[misc]
    """Writes checkpoints into a staging pool.

    Parameters
    ----------
    path:
        The checkpoint's directory, ``pool://HOST:PORT/PATH``; ``checkpoint_id`` of a save names another.
    thread_count:
        Files that each rank writes at the same time.
    overwrite:
        Whether a checkpoint that is there is written over.
    storage_options:
        Those of :class:`~surgetank.PoolFileSystem`: ``target``, ``token``, ``certificates`` and so on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        thread_count: int = 1,
        overwrite: bool = True,
        **storage_options: Any,
    ) -> None:
        super().__init__(path, storage_options)
        if thread_count < 1:
            raise ValueError(f"thread_count is {thread_count}: write 1 or more")
        self.thread_count = thread_count
        self.overwrite = overwrite
        self.save_id = str(uuid.uuid4())
        #: Whether this writer has begun to save: what is there is not what is asked for, until that is finished.
        self._saves = False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self._place(checkpoint_id)
        self.save_id = str(uuid.uuid4())
        self._saves = True

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._set_up(kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self.fs.makedirs(self.path, exist_ok=True)
        self._refuse_other_kind()
        if self.fs.exists(self._metadata(self._own_rank)):
            if not self.overwrite:
                raise FileExistsError(errno.EEXIST, "there is a checkpoint already: name another place, or add overwrite=True", self.path)
            warnings.warn(f"the checkpoint at {self.checkpoint_id} is written over", stacklevel=2)
        if self._own_rank is not None:
            plan = dataclasses.replace(plan, storage_data=self._names(self._own_rank))
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [
            dataclasses.replace(plan, storage_data=self._names(rank)) if plan.storage_data is None else plan
            for rank, plan in enumerate(plans)
        ]

    def _refuse_other_kind(self) -> None:
        """Of ranks with metadata of their own and all ranks together, one would write over the other's files."""
        for path in self.fs.ls(self.path, detail=False):
            name = posixpath.basename(path)
            if name.endswith(_METADATA) and (name == _METADATA) != self.use_collectives:
                why = "there is a checkpoint with one file of metadata" if name == _METADATA else "each rank of the checkpoint has metadata of its own"
                raise FileExistsError(errno.EEXIST, f"{why}, and this save differs in that: name another place", self.path)

    def _names(self, rank: int) -> _Names:
        """A rank's files have other names than those of a checkpoint that is there, which stays whole until this one is."""
        is_there = self.fs.exists(self._metadata(self._own_rank))
        return _Names(f"__{rank}_{self.save_id[:8]}_" if is_there else f"__{rank}_", self.save_id)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        # Of all ranks, the coordinator has said which save it is.
        self.save_id, self._saves = plan.storage_data.save_id, True
        shares = _shares(plan.items, self.thread_count)
        names = [f"{plan.storage_data.begins}{number}{_SUFFIX}" for number in range(len(shares))]
        # An error of any thread is the save's.
        with ThreadPoolExecutor(self.thread_count) as threads:
            written = list(threads.map(self._write, names, shares, [planner] * len(shares)))
        future: Future[list[WriteResult]] = Future()
        future.set_result([result for results in written for result in results])
        return future

    def _write(self, name: str, items: list[WriteItem], planner: SavePlanner) -> list[WriteResult]:
        results = []
        # Its close is a commit: the coordinator, which is told of it, writes the metadata afterwards, and the target sees both in that order.
        with self.fs.open(self._at(name), "wb") as file:
            for item in items:
                begins = file.tell()
                data = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    file.write(data.getbuffer())
                else:
                    torch.save(_alone(data), file)
                length = file.tell() - begins
                info = _StorageInfo(name, begins, length)
                results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=info))
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        metadata.storage_meta = self.storage_meta()
        if hasattr(metadata, "version"):
            metadata.version = getattr(of_torch, "CURRENT_DCP_VERSION", metadata.version)
        final = self._metadata(self._own_rank)
        with self.fs.open(f"{final}.tmp", "wb") as file:
            pickle.dump(metadata, file)
        # In the place of a former one in one step: no moment is without.
        self.fs.rename(f"{final}.tmp", final)
        wanted = {info.relative_path for info in metadata.storage_data.values()}
        begins = "__" if self._own_rank is None else f"__{self._own_rank}_"
        for path in self.fs.ls(self.path, detail=False):
            name = posixpath.basename(path)
            if name.startswith(begins) and name.endswith(_SUFFIX) and name not in wanted:
                self.fs.rm_file(path)

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    def replicated(self, timeout: float | None = None) -> None:
        """Returns when as many benefactors have the whole checkpoint as the mount's durability says; any rank may ask after the save.

        Without a coordinator it is the rank's own save, and whatever else is there by then.
        Raises as :meth:`PoolFileSystem.replicated <surgetank.PoolFileSystem.replicated>`.
        """
        self._finished()
        self.fs.replicated(self.path, timeout)

    def drained(self, timeout: float | None = None) -> None:
        """Returns when the pool's target has the whole checkpoint; any rank may ask after the save.

        Without a coordinator it is the rank's own save, and whatever else is there by then.
        Raises as :meth:`PoolFileSystem.drained <surgetank.PoolFileSystem.drained>`.
        """
        self._finished()
        self.fs.drained(self.path, timeout)

    def _finished(self) -> None:
        try:
            found = self.fs.cat_file(self._metadata(self._own_rank))
        except FileNotFoundError:
            found = None
        # A checkpoint that another run has written may be asked for, too; a former one at the same place is not this one.
        if found is None or (self._saves and getattr(pickle.loads(found).storage_meta, "save_id", None) != self.save_id):
            raise RuntimeError(f"the checkpoint at {self.checkpoint_id} is not finished: wait for the save first")


class PoolReader(_Storage, StorageReader):  # type: ignore[misc]
    """Reads checkpoints out of a staging pool, also those that its target has and other programs have written there.

    Parameters
    ----------
    path:
        The checkpoint's directory, ``pool://HOST:PORT/PATH``; ``checkpoint_id`` of a load names another.
    storage_options:
        Those of :class:`~surgetank.PoolFileSystem`: ``target``, ``token``, ``certificates`` and so on.

    Metadata are a pickle, as torch writes them: read only what you trust.
    """

    def __init__(self, path: str | os.PathLike[str], **storage_options: Any) -> None:
        super().__init__(path, storage_options)
        self.storage_data: dict[Any, Any] = {}
        self.load_id = str(uuid.uuid4())

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.storage_data = {}
        if checkpoint_id:
            self._place(checkpoint_id)
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = pickle.loads(self.fs.cat_file(self._metadata(kwargs.get("rank"))))
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if metadata.storage_data is None:
            raise ValueError(f"the metadata of the checkpoint at {self.checkpoint_id} do not say where its data are")
        self._set_up(kwargs)
        self.storage_data = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        of_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            of_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in of_file.items():
            with self.fs.open(self._at(name), "rb") as file:
                for item in sorted(items, key=lambda item: int(self.storage_data[item.storage_index].offset)):
                    self._read(file, item, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read(self, file: Any, item: ReadItem, planner: LoadPlanner) -> None:
        info = self.storage_data[item.storage_index]
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"{file.path}: {item.storage_index} was transformed by an extension when it was saved: load it with torch's reader")
        file.seek(info.offset)
        read = file.read(info.length)
        if len(read) != info.length:
            why = f"it ends {info.length - len(read)} bytes too early for {item.storage_index}: somebody has cut it off"
            raise OSError(errno.EIO, why, file.path)
        data = io.BytesIO(read)
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, data)
            return
        tensor = torch.load(data, map_location="cpu", weights_only=True)
        for dimension, (begins, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            tensor = tensor.narrow(dimension, begins, length)
        into = planner.resolve_tensor(item).detach()
        if into.size() != tensor.size():
            raise ValueError(f"{item.storage_index} is {tuple(tensor.size())} in the checkpoint, and {tuple(into.size())} is loaded")
        into.copy_(tensor)
        planner.commit_tensor(item, into)


def _alone(tensor: Any) -> Any:
    """A tensor in memory of the host, without the rest of the storage that it is a view of."""
    tensor = tensor.detach().cpu()
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        tensor = tensor.clone()
    return tensor


def _shares(items: list[WriteItem], count: int) -> list[list[WriteItem]]:
    """What each thread writes: the largest first, each to the thread that has the least."""
    if count == 1:
        return [items]
    shares: list[list[WriteItem]] = [[] for _ in range(count)]
    sizes = [0] * count
    for item in sorted(items, key=_size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(item)
        sizes[least] += _size(item)
    return [share for share in shares if share]


def _size(item: WriteItem) -> int:
    """About how many bytes an item has: elements of tensors are of similar sizes."""
    if item.tensor_data is None:
        return 1
    elements = 1
    for length in item.tensor_data.chunk.sizes:
        elements *= length
    return elements
