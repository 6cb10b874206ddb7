"""Parse the query of a request into a `Question` to a view, and wait until the view is fresh enough for it."""

import math
from collections.abc import Sequence

import anyio
from anyio.to_thread import run_sync
from starlette.datastructures import QueryParams

from headwater.clock import Clock
from headwater.errors import InvalidError
from headwater.store import queries as asking
from headwater.store.questions import (
    Condition,
    Operator,
    Order,
    Question,
    decode_cursor,
    parse_at_least,
    parse_condition,
    parse_order,
    parse_position,
)
from headwater.store.reader import not_seen
from headwater.store.shapes import ViewShape
from headwater.store.views import ViewStore

ROWS_DEFAULT = 1000
ROWS_MAX = 10_000
TIMEOUT_S, TIMEOUT_MAX_S = 10.0, 60.0
POLL_S = 0.02


def question_of(shape: ViewShape, parameters: QueryParams, key: Sequence[str], store: ViewStore) -> Question:
    """Return the question of a request; raise InvalidError if a parameter is invalid."""
    if len(key) > len(shape.key):
        asking.by_key(shape, key)  # Raises InvalidError: too many values.
    conditions = [Condition(name, Operator.EQUAL, value) for name, value in zip(shape.key, key, strict=False)]
    conditions += [parse_condition(text) for text in parameters.getlist("where")]
    as_of, after = parameters.get("as_of"), parameters.get("after")
    return Question(
        where=tuple(conditions),
        search=parameters.get("q"),
        order=_order(shape, parameters),
        limit=integer("limit", parameters.get("limit", str(ROWS_DEFAULT)), smallest=1, largest=ROWS_MAX),
        after=None if after is None else decode_cursor(after),
        as_of=None if as_of is None else parse_position(as_of, store.identity()),
    )


async def wait_until_seen(store: ViewStore, view: str, parameters: QueryParams, clock: Clock) -> None:
    """Wait until the view has seen what `at_least` names; raise UnavailableError after `timeout` seconds."""
    text = parameters.get("at_least")
    if text is None:
        return
    timeout_s = _seconds("timeout", parameters.get("timeout", str(TIMEOUT_S)))
    wanted = parse_at_least(text, await run_sync(store.identity))
    deadline = clock.monotonic() + timeout_s

    def has_seen() -> bool:
        return asking.has_seen(store.reading(), view, wanted)

    while not await run_sync(has_seen):
        if clock.monotonic() >= deadline:
            raise await run_sync(not_seen, store, view, wanted, timeout_s)
        await anyio.sleep(POLL_S)


def integer(name: str, text: str, *, smallest: int, largest: int = 2**63 - 1) -> int:
    """Parse a query parameter as a whole number."""
    # Checked for digits first, because int() also accepts " 1", "+1" and "1_000".
    if not (text.isascii() and text.isdigit() and smallest <= int(text) <= largest):
        raise InvalidError(f"{name} must be a whole number from {smallest} to {largest}, not {text!r}")
    return int(text)


def _order(shape: ViewShape, parameters: QueryParams) -> tuple[Order, ...]:
    text, descending = parameters.get("order_by"), _boolean("descending", parameters.get("descending", "false"))
    if text is None:
        return tuple(Order(name, True) for name in shape.key) if descending else ()
    if any(column.name == text for column in shape.columns):  # A column name may contain commas or start with '-'.
        return (Order(text, descending),)
    return tuple(Order(order.column, order.descending != descending) for order in parse_order(text))


def _boolean(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _seconds(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= TIMEOUT_MAX_S:
        raise InvalidError(f"{name} must be seconds from 0 to {TIMEOUT_MAX_S:g}, not {text!r}")
    return found
