"""The checker of `./dev torture app` finds the errors that it is there to find."""

import random
from collections import Counter
from pathlib import Path

import pytest

from torture.app import plan
from torture.shop import (
    COLUMNS,
    DEAD_LETTERS,
    END,
    THE_END,
    VIEWS,
    Customer,
    Event,
    Malformed,
    Order,
    Shop,
    differences,
    expected_outputs,
)
from torture.shop_run import Offsets, Sampler, different_positions

OUTPUTS = (*COLUMNS, DEAD_LETTERS)


def events() -> list[Event]:
    orders = [
        Order(1, "tea", 7, 10, 0),
        Order(2, "tea", 7, 12, 59),
        Order(3, "tea", 8, 12, 61),
        Order(3, "tea", 8, 12, 61),  # sent twice
        Order(4, "milk", 9, 14, 130),
        Order(-1, THE_END, 0, 0, END),
    ]
    return [*orders, Customer(7, "Ulm", 2), Customer(7, "Bonn", 1), Customer(8, "Kiel", 3), Malformed(b"{oops")]


def test_the_expected_rows() -> None:
    assert {name: sorted(rows.elements()) for name, rows in expected_outputs(events()).items()} == {
        "picked": [(1, "tea", 10), (2, "tea", 12), (3, "tea", 12)],
        "minutes": [("milk", 120, 1, 14), ("tea", 0, 2, 22), ("tea", 60, 2, 24)],
        "hops": [
            *(("milk", 60, 1, 14), ("milk", 120, 1, 14)),
            *(("tea", -60, 2, 22), ("tea", 0, 4, 46), ("tea", 60, 2, 24)),
        ],
        "best": [
            *(("milk", 1, 4, 14), ("tea", 1, 2, 12), ("tea", 2, 3, 12), ("tea", 3, 3, 12)),
            ("the end", 1, -1, 0),
        ],
        "placed": [(1, "tea", 7, "Ulm"), (2, "tea", 7, "Ulm"), (3, "tea", 8, "Kiel")],
        "totals": [(0, 1, 0), (7, 2, 22), (8, 1, 12), (9, 1, 14)],
        "bands": [(0, 1, 1), (2, 2, 3), (4, 1, 1)],
        "halves": [("milk", 120, 1, 14), ("tea", 0, 1, 10), ("tea", 30, 1, 12), ("tea", 60, 2, 24)],
        "archive": [
            *((-1, "the end", 0), (1, "tea", 10), (2, "tea", 12)),
            *((3, "tea", 12), (3, "tea", 12), (4, "milk", 14)),
        ],
        DEAD_LETTERS: [b"{oops"],
    }


def test_equal_outputs_have_no_differences() -> None:
    assert differences(expected_outputs(events()), expected_outputs(events())) == []


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_lost_a_doubled_and_a_changed_row_are_found(output: str) -> None:
    expected = expected_outputs(events())
    row = sorted(expected[output])[0]
    lost, doubled, changed = (Counter(expected[output]) for _ in range(3))
    lost[row] -= 1
    doubled[row] += 1
    other = (*row[:-1], "changed") if isinstance(row, tuple) else row + b"!"
    changed.update({row: -1, other: 1})
    found = [differences({**expected, output: +rows}, expected) for rows in (lost, doubled, changed)]
    assert [len(lines) for lines in found] == [1, 1, 1]
    assert f"1 are missing, such as [{row!r}]; 0 too many" in found[0][0]
    assert f"0 are missing, such as []; 1 too many, such as [{row!r}]" in found[1][0]
    assert f"1 are missing, such as [{row!r}]; 1 too many, such as [{other!r}]" in found[2][0]


def sampler(*, same_position: bool = False) -> Sampler:
    return Sampler(Path("views.db"), Shop(), same_position)


def at(orders: int, customers: int | None = None) -> Offsets:
    return {"orders": {"0": orders, "1": 5}, **({} if customers is None else {"customers": {"0": customers}})}


def test_positions_that_grow_are_no_problem() -> None:
    reader = sampler()
    for position in (3, 3, 4):
        reader.observe({"picked": at(position)})
    assert reader.problems == []


def test_a_position_that_goes_back_is_found() -> None:
    reader = sampler()
    for position in (3, 4, 3):
        reader.observe({"picked": at(position), "placed": at(9, 9)})
    assert reader.problems == ["picked: orders-0 went back from 4 to 3"]


def test_a_position_that_disappears_is_found() -> None:
    reader = sampler()
    reader.observe({"picked": at(3)})
    reader.observe({})
    assert reader.problems == ["picked: its position has disappeared"]


def test_views_at_the_same_position_are_no_problem() -> None:
    reader = sampler(same_position=True)
    reader.observe({})  # before the first batch
    reader.observe({view: at(3, 8 if view == "placed" else None) for view in VIEWS})
    assert reader.problems == []


def test_views_at_different_positions_are_found() -> None:
    found = {"picked": at(3), "placed": at(4, 8)}
    assert different_positions(found, ("picked", "placed")) == ["orders-0: {3: ['picked'], 4: ['placed']}"]
    assert different_positions(found, ("picked", "placed", "best"))[0] == "best has no position, others have"


def test_a_run_has_four_to_eight_kills_of_which_two_hit_batches() -> None:
    plans = [plan(random.Random(seed), None) for seed in range(50)]
    assert {len(kills) for kills in plans} == {4, 5, 6, 7, 8}
    assert {sum(not kill.early for kill in kills) for kills in plans} == {2}
    assert any(kill.victim == "java" for kills in plans for kill in kills)
