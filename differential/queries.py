"""Queries: a chain of operators over generated rows. Pairs of all operators, and random chains."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import headwater as hw
from differential.by_window import ByWindow
from differential.joins import Join
from differential.measures import SIMPLE, random_measures
from differential.operators import Aggregate, Clocks, Deduplicate, Operator, Plain, Rolling, Table, Top, Union
from differential.rows import BASES, COLUMNS, GLOBAL_BASES, Data, generate
from differential.windows import LATENESS, Windowed

_ON_TIME = hw.AfterWatermark()

EXAMPLES: dict[str, Operator] = {
    "tumbling, native": Windowed(how=None, measures=SIMPLE),
    "tumbling, accumulating": Windowed(when=_ON_TIME, how=hw.ACCUMULATING, measures=SIMPLE),
    "tumbling, discarding": Windowed(when=_ON_TIME, how=hw.DISCARDING, measures=SIMPLE),
    "tumbling, retracting": Windowed(measures=SIMPLE),
    "hopping": Windowed(where=hw.Hopping("20 seconds", "10 seconds"), measures=SIMPLE),
    "sliding": Windowed(where=hw.Sliding("5 seconds"), measures=SIMPLE),
    "session": Windowed(where=hw.Session("4 seconds"), measures=SIMPLE),
    "global": Windowed(where=hw.Global(), when=hw.EveryBatch(), measures=SIMPLE),
    "top of a window": ByWindow("top"),
    "aggregate by window": ByWindow("aggregate", Windowed()),
    "last window": ByWindow("deduplicate", Windowed()),
    "rolling over windows": ByWindow("rolling"),
    "aggregate": Aggregate(measures=SIMPLE),
    "top": Top(),
    "deduplicate, first": Deduplicate(),
    "deduplicate, last": Deduplicate(keep="last"),
    "rolling": Rolling(),
    "table": Table(),
    "union": Union(),
    "correct_clocks": Clocks(),
    "plain": Plain(),
    "side input": Join("side", "left"),
    **{f"join, {how}": Join("table", how) for how in ("inner", "left", "right", "full", "semi", "anti")},
    **{f"join within, {how}": Join("within", how) for how in ("inner", "left", "full", "anti")},
    **{f"join as of, {how}": Join("as_of", how) for how in ("inner", "left", "anti")},
    "join now": Join("now", "left"),
}
"""One example of every operator; all ordered pairs of these are tested."""


@dataclass(frozen=True, slots=True)
class Query:
    """A chain of operators and its input; `seed` decides the cuts into batches.

    With `late`, the watermark overtakes rows, which all operators permit by their lateness.
    """

    name: str
    operators: tuple[Operator, ...]
    data: Data
    seed: int
    late: bool = False
    cuts: tuple[int, ...] = (0, 1, 3, 8)
    """Numbers of cuts into batches, of which one is chosen."""

    @property
    def refusal(self) -> str | None:
        """The reason why the query must be refused; None if it must run."""
        has_time, has_changes = True, self.data.has_retractions
        for operator in self.operators:
            if operator.needs_time and not has_time:
                return f"{operator} needs an event time"
            if operator.needs_rows and has_changes:
                return f"{operator} refuses changes"
            if reason := _mode_refusal(operator, has_changes):
                return reason
            has_time = (has_time and operator.keeps_time) or operator.has_own_time
            has_changes = operator.output_has_retractions(has_changes)
        return None

    @property
    def has_native_windows(self) -> bool:
        """True if Spark's own operator computes windows in batch."""
        return any(isinstance(operator, Windowed) and operator.is_native for operator in self.operators)

    @property
    def columns(self) -> list[tuple[str, ...]]:
        """The columns of the input and of each operator's output."""
        found = [tuple(COLUMNS)]
        for operator in self.operators:
            has_time = ("ts" in found[-1] and operator.keeps_time) or operator.has_own_time
            found.append(tuple(name for name in COLUMNS if name != "ts" or has_time))
        return found

    @property
    def result(self) -> list[str]:
        """The columns of the result: the values of a row that are exact come first."""
        last = self.operators[-1]
        rest = [f"m{n}" for n in range(len(last.measures))] or ["x", "d", "s", "l"]
        return ["id", "k", "v", *rest]

    @property
    def comparable_types(self) -> list[str]:
        """The columns of the result whose types SQL has, too: all but the aggregates that it has not."""
        measures = self.operators[-1].measures
        if not measures:
            return self.result
        return ["id", "k", "v", *(f"m{n}" for n, measure in enumerate(measures) if measure.is_native)]


def _mode_refusal(operator: Operator, has_changes: bool) -> str | None:
    """Sessions and sliding windows over changes can only retract."""
    if not isinstance(operator, Windowed) or not has_changes or operator.where.is_fixed:
        return None
    return None if operator.how in (None, hw.RETRACTING) else f"{operator} over changes must retract"


def pairs(*firsts: str) -> Iterator[Query]:
    """Yield a query for each ordered pair of operators, or for those that begin with the named ones."""
    seed = 0
    data = generate(random.Random(seed), size=30, unusual=False, retracts=False)
    for first in firsts or EXAMPLES:
        one = EXAMPLES[first]
        for second, other in EXAMPLES.items():
            yield Query(f"{first} -> {second}", (_without_measures(one), other), data, seed, cuts=(2,))


_WINDOWS: Sequence[Any] = (
    hw.Tumbling("10 seconds"),
    hw.Tumbling("7 seconds", offset="3 seconds"),
    hw.Hopping("20 seconds", "10 seconds"),
    hw.Hopping("15 seconds", "4 seconds"),
    hw.Hopping("3 seconds", "5 seconds"),
    hw.Sliding("5 seconds"),
    hw.Sliding("1 microsecond"),
    hw.Session("1 second"),
    hw.Session("4 seconds"),
    hw.Global(),
)
_AT_ONCE: Sequence[Any] = (hw.EveryBatch(), hw.PerRecord())
_TRIGGERS: Sequence[Any] = (
    hw.Default(),
    hw.AfterWatermark(early=hw.AfterCount(2), late=hw.AfterCount(1)),
    hw.AfterWatermark(late=hw.AfterCount(3)),
    hw.Repeatedly(hw.AfterCount(2)),
    *_AT_ONCE,
)
"""Triggers that never finish: every row counts."""


def random_query(seed: int) -> Query:
    """Make a query of one to three operators over data of its own."""
    return random_queries(seed, 1)[0]


def random_queries(seed: int, number: int, bases: Sequence[int] = BASES) -> list[Query]:
    """Make queries over the same data. Either no row is late, or all operators have a lateness."""
    chance = random.Random(seed)
    late = chance.random() < 0.5
    data = generate(
        chance,
        size=chance.choice((0, 1, 5, 20, 40)),
        retracts=chance.random() < 0.5,
        unusual=chance.random() < 0.7,
        base=chance.choice(bases),
    )
    return [
        Query(f"{seed}/{part}", _random_chain(chance, data.base, late=late), data, seed, late=late)
        for part in range(number)
    ]


def _random_chain(chance: random.Random, base: int, *, late: bool) -> tuple[Operator, ...]:
    windows = [where for where in _WINDOWS if base in GLOBAL_BASES or not isinstance(where, hw.Global)]
    chain = [_random_operator(chance, windows, late=late) for _ in range(chance.choice((1, 1, 2, 2, 3)))]
    return (*map(_without_measures, chain[:-1]), chain[-1])


def _without_measures(operator: Operator) -> Operator:
    """Only the last operator needs more than the sum that all pass on."""
    return replace(operator, measures=()) if operator.measures else operator  # type: ignore[type-var]


def _random_operator(chance: random.Random, windows: Sequence[Any], *, late: bool) -> Operator:
    lateness = LATENESS if late else None
    kind = chance.randrange(12)
    measures = random_measures(chance, chance.choice((1, 2, 4)))
    match kind:
        case 0 | 1 | 2 | 3:
            where = chance.choice(windows)
            # Global's window does not end, so a trigger must not wait for it.
            triggers = _AT_ONCE if isinstance(where, hw.Global) else _TRIGGERS
            return Windowed(where=where, when=chance.choice(triggers), lateness=lateness, measures=measures)
        case 4 | 5:
            return Aggregate(measures=measures)
        case 6:
            down = chance.random() < 0.5
            first = chance.choice(("v", "x", "d", "h", "k"))
            rest = tuple((name, False) for name in ("id", "ts", "v") if name != first)
            return Top(n=chance.choice((1, 2, 5)), order=((first, down), *rest))
        case 7:
            return Deduplicate(keep=chance.choice(("first", "last")))
        case 8:
            return Rolling(last=chance.choice((1, 2, 4)))
        case 9:
            return chance.choice((Table(), Union(), Plain(), Clocks()))
        case _:
            join = chance.choice([one for one in EXAMPLES.values() if isinstance(one, Join)])
            return replace(join, lateness=lateness) if join.kind in ("within", "as_of") else join
