"""Where an item of a checkpoint is."""

from collections.abc import Sequence
from dataclasses import dataclass

#: torch 2.15 has it.
CURRENT_DCP_VERSION = "1.0.0"


@dataclass
class _StorageInfo:
    relative_path: str
    offset: int
    length: int
    transform_descriptors: Sequence[str] | None = None
