"""Finds the few items that make a whole batch fail, by trying parts of it. Pure.

A try is expensive (a Spark job), so the search needs few of them. One failing item among n is found in about
log2(n) tries. After the first, the search continues close by in growing steps, because failing items tend to be
neighbours.
"""

from collections.abc import Callable

Fails = Callable[[int, int], bool]
"""Returns whether the items from one position to before another fail when tried alone."""


class NoneFailsAloneError(Exception):
    """The items fail together, but none of them fails alone."""


class TooManyFailError(Exception):
    """More items fail than the limit; `found` has those that were found."""

    def __init__(self, found: list[int]) -> None:
        super().__init__(f"found {len(found)} failing items, and there are more")
        self.found = found


def find_failing(
    size: int, fails: Fails, *, limit: int, on_found: Callable[[int], None] = lambda _: None
) -> list[int]:
    """Return the positions among the first `size` that fail alone; all of them together are known to fail."""
    found: list[int] = []
    low, high = 0, size
    while True:
        position = _first_failing(low, high, fails)
        if not fails(position, position + 1):
            raise NoneFailsAloneError
        found.append(position)
        on_found(position)
        low = position + 1
        if low == size or not fails(low, size):
            return found
        if len(found) == limit:
            raise TooManyFailError(found)
        low, high = _failing_part(low, size, fails)


def _first_failing(low: int, high: int, fails: Fails) -> int:
    """Return the first position that fails among those from `low` to before `high`, which fail together."""
    while high - low > 1:
        middle = (low + high) // 2
        if fails(low, middle):
            high = middle
        else:
            low = middle
    return low


def _failing_part(start: int, end: int, fails: Fails) -> tuple[int, int]:
    """Return the first failing part from `start` on, in growing steps; all up to `end` is known to fail."""
    low, step = start, 1
    while low + step < end:
        if fails(low, low + step):
            return low, low + step
        low += step
        step *= 2
    return low, end
