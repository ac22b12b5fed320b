"""A staging pool for checkpoints, as programs in Python use it.

``fsspec.open("pool://HOST:PORT/PATH", target="/scratch/run1")`` opens files of a pool; :class:`PoolFileSystem` is the file system behind it.
``surgetank.dcp`` has the writer and reader for ``torch.distributed.checkpoint``; it needs torch, which nothing else here does.
"""

from .filesystem import PoolFileSystem
from .waits import NeverThere

__all__ = ["NeverThere", "PoolFileSystem"]
