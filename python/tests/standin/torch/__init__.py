"""Stands in for torch where it is not installed: what storage of torch.distributed.checkpoint sees of it, over numpy."""

from __future__ import annotations

import numpy

__version__ = "0.standin"


class Size(tuple):
    pass


class Storage:
    def __init__(self, size: int) -> None:
        self._size = size

    def nbytes(self) -> int:
        return self._size


class Tensor:
    def __init__(self, array: numpy.ndarray) -> None:
        self.array = array

    def numpy(self) -> numpy.ndarray:
        return self.array

    def detach(self) -> Tensor:
        return Tensor(self.array)

    def cpu(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return Tensor(self.array.copy())

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def size(self) -> Size:
        return Size(self.array.shape)

    def untyped_storage(self) -> Storage:
        owner = self.array
        while isinstance(owner.base, numpy.ndarray):
            owner = owner.base
        return Storage(owner.nbytes)

    def narrow(self, dimension: int, begins: int, length: int) -> Tensor:
        return Tensor(self.array[(slice(None),) * dimension + (slice(begins, begins + length),)])

    def copy_(self, other: Tensor) -> Tensor:
        self.array[...] = other.array
        return self


def from_numpy(array: numpy.ndarray) -> Tensor:
    return Tensor(array)


def save(tensor: Tensor, file: object) -> None:
    # As torch does: many small writes, and the data.
    file.write(b"standin")
    numpy.save(file, tensor.array)


def load(file: object, map_location: str, weights_only: bool) -> Tensor:
    assert (map_location, weights_only) == ("cpu", True)
    assert file.read(7) == b"standin"
    return Tensor(numpy.load(file))
