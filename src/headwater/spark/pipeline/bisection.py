"""Finds the few that make all of them fail, by trying parts. Pure.

What is tried is costly (a Spark job), so what counts is how often. One among n is found in about log2(n) tries;
after the first the next is looked for close by, in growing steps, because what fails tends to come in crowds.
"""

from collections.abc import Callable

Fails = Callable[[int, int], bool]
"""Whether the things from one position to before another fail, tried by themselves."""


class NoneFailsAloneError(Exception):
    """All of them fail together, and none of them alone."""


class TooManyFailError(Exception):
    """More fail than were to be looked for; the ones that were found are in `found`."""

    def __init__(self, found: list[int]) -> None:
        super().__init__(f"{len(found)} were found, and there are more")
        self.found = found


def find_failing(
    size: int, fails: Fails, *, limit: int, on_found: Callable[[int], None] = lambda _: None
) -> list[int]:
    """The positions among the first `size` that fail, each by itself; all of them together are known to fail."""
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
        low, high = _crowd(low, size, fails)


def _first_failing(low: int, high: int, fails: Fails) -> int:
    """The first position that fails among those from `low` to before `high`, which fail together."""
    while high - low > 1:
        middle = (low + high) // 2
        if fails(low, middle):
            high = middle
        else:
            low = middle
    return low


def _crowd(start: int, end: int, fails: Fails) -> tuple[int, int]:
    """A part that fails behind parts that do not, looked for in growing steps; all up to the end fails."""
    low, step = start, 1
    while low + step < end:
        if fails(low, low + step):
            return low, low + step
        low += step
        step *= 2
    return low, end
