"""Where an item of a checkpoint is."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _StorageInfo:
    relative_path: str
    offset: int
    length: int
    transform_descriptors: Sequence[str] | None = None
