"""The few failing items are found among many, with few tries."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.pipeline.bisection import NoneFailsAloneError, TooManyFailError, find_failing


class Trial:
    """Fails if a bad item is tried, and counts the tries."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.tries = 0

    def __call__(self, low: int, high: int) -> bool:
        self.tries += 1
        return any(low <= position < high for position in self.bad)


@given(st.data())
def test_exactly_the_failing_items_are_found(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 3000))
    bad = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=20))
    trial = Trial(bad)
    assert find_failing(size, trial, limit=20) == sorted(bad)
    assert trial.tries <= len(bad) * (2 * ceil(log2(size + 1)) + 3)


def test_one_item_in_a_large_batch_takes_about_twenty_tries() -> None:
    trial = Trial({321_098})
    assert find_failing(500_000, trial, limit=100) == [321_098]
    assert trial.tries <= 22


def test_too_many_failing_items_are_given_up_soon() -> None:
    trial = Trial(set(range(500_000)))
    with pytest.raises(TooManyFailError) as caught:
        find_failing(500_000, trial, limit=100)
    assert caught.value.found == list(range(100))
    assert trial.tries < 350


def test_items_that_fail_only_together_are_not_blamed_on_one() -> None:
    with pytest.raises(NoneFailsAloneError):
        find_failing(10, lambda low, high: high - low > 1, limit=5)
