"""Questions about a view, compiled to SQL statements. Pure.

Every order ends with the key, so that it is total. A cursor holds the last row's values in that order, and the
next page is the rows after them. So the cost of a page depends on its size, and not on its distance from the first
page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from headwater.errors import InvalidError
from headwater.sql_names import quote, quote_list
from headwater.store.databases.engine import Dialect, SearchMatch
from headwater.store.questions import IN_MAX, Condition, Cursor, Operator, Order, Question
from headwater.store.search import parse_search
from headwater.store.shapes import ViewShape
from headwater.store.values.columns import Value, literal

_SQL = {Operator.NOT_EQUAL: "<>"}


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text and parameters; after the view's columns, each result row has the values of `order`'s columns."""

    text: str
    values: tuple[Any, ...]
    order: tuple[Order, ...]


class NullsPart(Enum):
    """The part of the rows after a cursor that a statement selects."""

    ALL = auto()
    VALUES = auto()
    NULLS = auto()


def parts_of(question: Question) -> tuple[NullsPart, ...]:
    """Return the statements that a page takes.

    In descending order, nulls come after all values. No range of an index has both, so they are read separately.
    """
    cursor = question.after
    if cursor is None or cursor.at[0] is None or not cursor.by[0].descending:
        return (NullsPart.ALL,)
    return NullsPart.VALUES, NullsPart.NULLS


def compile_question(
    shape: ViewShape,
    question: Question,
    dialect: Dialect,
    search: str | None = None,
    which: NullsPart = NullsPart.ALL,
) -> Statement:
    """Return the statement, which selects one row more than the limit to show whether there is another page."""
    order = total_order(shape, question)
    joins: list[str] = []
    conditions: list[str] = []
    values: list[Any] = []
    relevance = None
    if question.search is not None:
        match = _match(shape, question.search, dialect, search)
        joins, conditions, values = [match.join], [match.condition], [match.parameter]
        relevance = None if question.order else match.relevance
    for condition in question.where:
        text, given = _condition(shape, condition, dialect)
        conditions.append(text)
        values += given
    if question.after is not None:
        text, given = _after_cursor(shape, question.after, order, dialect, which)
        conditions.append(text)
        values += given
    parts = [expression(shape, each.column, dialect) for each in order]
    sorting = ", ".join(
        [
            *([f"{relevance} desc"] if relevance is not None else []),
            *(
                f"{part} desc nulls last" if each.descending else f"{part} asc nulls first"
                for number, (part, each) in enumerate(zip(parts, order, strict=True))
                if number or which is not NullsPart.NULLS  # Here the first column is null in all rows.
            ),
        ]
    )
    clauses = f"where {' and '.join(conditions) or 'true'} order by {sorting} limit ?"
    values.append(question.limit + 1)
    relation = f"{table_of(shape.name)} v"
    if question.as_of is not None:
        relation, given = _past_rows(shape, question.as_of, dialect, clauses, values)
        values = [*given, *values]
    wanted = ", ".join([*(f"v.{quote(column.name)}" for column in shape.columns), *parts])
    return Statement(f"select {wanted} from {' '.join([relation, *joins])} {clauses}", tuple(values), order)


def _match(shape: ViewShape, text: str, dialect: Dialect, search: str | None) -> SearchMatch:
    if search is None:
        raise InvalidError(
            f"view {shape.name!r} cannot be searched: it has no search columns",
            hint="declare them with @app.view(..., search=['title']), and run the app again",
        )
    return dialect.match(search, parse_search(text))


def total_order(shape: ViewShape, question: Question) -> tuple[Order, ...]:
    """Return the question's order, followed by the key columns in the direction of the last column."""
    named = {order.column for order in question.order}
    descending = bool(question.order) and question.order[-1].descending
    return (*question.order, *(Order(name, descending) for name in shape.key if name not in named))


def expression(shape: ViewShape, reference: str, dialect: Dialect, row: str = "v.") -> str:
    """Return the expression that compares a column or a field: the stored value, or for decimals their number."""
    column, path, kind = shape.resolve(reference)
    found = row + quote(column.name)
    if path:
        found = dialect.field(found, path, kind)
    return dialect.real(found) if kind.startswith("decimal") else found


def _past_rows(
    shape: ViewShape, position: int, dialect: Dialect, clauses: str, values: Sequence[Any]
) -> tuple[str, list[Any]]:
    """Return the rows as of a position: the rows that are unchanged since, and the earlier values of the others.

    There may be many unchanged rows, so the question's `clauses` are applied to them first; there are no more
    changed rows than the history has changes.
    """
    before = ", ".join(
        f"{dialect.element('c.before', n, column.type)} as {quote(column.name)}"
        for n, column in enumerate(shape.columns)
    )
    unchanged = "_key not in (select key from headwater_changes where view = ? and position > ?)"
    text = (
        f"(select * from (select v.* from (select _key, {columns_of(shape)} from {table_of(shape.name)} "
        f"where {unchanged}) v {clauses}) u "
        f"union all select c.key as _key, {before} from headwater_changes c join "
        "(select min(position) as position from headwater_changes where view = ? and position > ? group by key) f "
        "on c.position = f.position where c.view = ? and c.before is not null) v"
    )
    return text, [shape.name, position, *values, shape.name, position, shape.name]


def _condition(shape: ViewShape, condition: Condition, dialect: Dialect) -> tuple[str, list[Value]]:
    part, kind = expression(shape, condition.column, dialect), shape.resolve(condition.column)[2]
    operator, value = condition.operator, condition.value
    if operator is Operator.IN:
        return _among(condition, part, kind)
    if value is None:
        if operator not in (Operator.EQUAL, Operator.NOT_EQUAL):
            raise InvalidError(
                f"cannot compare {condition.column} {operator} null: null has no order; use = or !="
            )
        return f"{part} is {'' if operator is Operator.EQUAL else 'not '}null", []
    known = literal(condition.column, kind, value)
    if operator is Operator.BEGINS:
        if kind != "string":
            raise InvalidError(f"cannot compare {condition.column} ^= {value!r}: the column is {kind}, not text")
        # The first part lets the database use an index; the second one decides.
        return f"({part} >= ? and substr({part}, 1, length(?)) = ?)", [known, known, known]
    if operator is Operator.NOT_EQUAL:
        return f"({part} <> ? or {part} is null)", [known]
    return f"{part} {_SQL.get(operator, operator)} ?", [known]


def _among(condition: Condition, part: str, kind: str) -> tuple[str, list[Value]]:
    if not isinstance(condition.value, list | tuple | set | frozenset):
        raise InvalidError(f"cannot compare {condition.column} in {condition.value!r}: expected a list")
    if len(condition.value) > IN_MAX:
        raise InvalidError(
            f"cannot compare {condition.column} in {len(condition.value)} values: the limit is {IN_MAX}"
        )
    known = [literal(condition.column, kind, value) for value in condition.value]
    present: list[Value] = [value for value in known if value is not None]
    texts = [f"{part} in ({', '.join('?' * len(present))})"] if present else []
    if None in known:
        texts.append(f"{part} is null")
    return f"({' or '.join(texts)})" if texts else "false", present


def _after_cursor(
    shape: ViewShape, cursor: Cursor, order: Sequence[Order], dialect: Dialect, which: NullsPart
) -> tuple[str, list[Value]]:
    """Return the condition for rows after the cursor: equal in some first columns, and later in the next one."""
    if cursor.by != tuple(order):
        raise InvalidError("cannot continue after this cursor: it belongs to another order or another view")
    texts, values = [], []
    equal: list[str] = []
    equal_values: list[Value] = []
    for each, at in zip(order, cursor.at, strict=True):
        part = expression(shape, each.column, dialect)
        later, given = _later(part, at, each.descending)
        if later is not None:
            texts.append(" and ".join([*equal, later]))
            values += [*equal_values, *given]
        equal.append(f"{part} is null" if at is None else f"{part} = ?")
        equal_values += [] if at is None else [at]
    text = f"({' or '.join(f'({text})' for text in texts) or 'false'})"
    first = expression(shape, order[0].column, dialect)
    if which is NullsPart.NULLS:
        return f"{first} is null", []
    if cursor.at[0] is None:
        return text, values
    # Redundant, but the database uses it to find the start in the index.
    return f"{first} {'<=' if order[0].descending else '>='} ? and {text}", [cursor.at[0], *values]


def _later(part: str, at: Value, descending: bool) -> tuple[str | None, list[Value]]:
    if at is None:
        return (None, []) if descending else (f"{part} is not null", [])
    return (f"({part} < ? or {part} is null)", [at]) if descending else (f"{part} > ?", [at])


def table_of(view: str) -> str:
    """Return the quoted name of a view's table."""
    return quote("view_" + view)


def columns_of(shape: ViewShape) -> str:
    """Return the quoted names of a view's columns."""
    return quote_list(c.name for c in shape.columns)
