"""A future that somebody has fulfilled."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    def set_result(self, result: T) -> None:
        self._result = result

    def wait(self) -> T:
        return self._result
