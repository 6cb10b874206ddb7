"""How long a backlog takes, told from the last batches."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.serve.live.catch_up import BacklogSample, catch_up_seconds


def standings(*behind: int, every_ms: int = 1000, rate: float | None = None) -> list[BacklogSample]:
    return [
        BacklogSample(at_ms=n * every_ms, behind_records=count, rows_per_second=rate)
        for n, count in enumerate(behind)
    ]


def test_nothing_is_known_before_the_first_batch() -> None:
    assert catch_up_seconds([]) is None


def test_who_has_read_everything_is_up_to_date() -> None:
    assert catch_up_seconds(standings(500, 0)) == 0.0


@given(st.integers(1, 1000), st.integers(2, 30), st.integers(1, 10_000))
def test_a_backlog_that_shrinks_evenly_is_gone_when_it_is_said_to_be(
    step: int, batches: int, every_ms: int
) -> None:
    told = catch_up_seconds(standings(*(step * n for n in range(2 * batches, batches, -1)), every_ms=every_ms))
    assert told is not None
    assert round(told * 1000) == (batches + 1) * every_ms


def test_a_burst_is_measured_from_its_peak() -> None:
    assert catch_up_seconds(standings(0, 0, 1_000_000, 900_000, 800_000)) == 8.0


def test_a_burst_that_has_just_come_is_told_by_the_rate_of_the_batches() -> None:
    assert catch_up_seconds(standings(0, 0, 1_000_000, rate=50_000.0)) == 20.0
    assert catch_up_seconds(standings(0, 0, 1_000_000)) is None


def test_time_passes_between_batches() -> None:
    known = standings(0, 0, 1_000_000, rate=50_000.0)
    assert catch_up_seconds(known, passed_s=5.0) == 15.0
    assert catch_up_seconds(known, passed_s=60.0) == 3.0
    assert catch_up_seconds(standings(60, 55, rate=1000.0), passed_s=1.0) == 0.055
    assert catch_up_seconds(standings(500, 0), passed_s=1.0) == 0.0


def test_a_handful_of_records_is_no_backlog() -> None:
    assert catch_up_seconds(standings(10, 20, 30, rate=1000.0)) == 0.03
    assert catch_up_seconds(standings(60, 55, rate=1000.0)) == 0.055


def test_who_falls_behind_and_further_behind_is_not_getting_there() -> None:
    assert catch_up_seconds(standings(1000, 2000, 3000, rate=50.0)) is None
