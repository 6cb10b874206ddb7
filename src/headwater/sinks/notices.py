"""Notices: the changes of a batch as messages, each with an id that identifies repetitions. Pure.

A notice is sent at least once. After a crash, the batch is sent again, perhaps with its rows in another order. So
changes are sorted first, and the same notice gets the same id. The id of a notice for a single row is derived from
its content: if the batch is sent again without a row that was refused, the other notices keep their ids.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.change import Op
from headwater.errors import InvalidError, RefusedError
from headwater.json_values import json_text
from headwater.sink import REFUSALS_MAX, Batch, Stream
from headwater.sinks.json_rows import json_objects

CHANGES_MAX = 500
"""Number of changes in a notice; a larger batch becomes several notices."""

BATCH, ROW = "batch", "row"
_NAMESPACE = uuid.UUID("6f1c6a0e-3f0f-5d6e-9a44-3d9d5c1f6d2b")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNotice:
    """The change of one row; `index` is the row in the batch. `before` is known if the query retracts rows."""

    op: Op
    before: Row | None
    after: Row | None
    index: int = field(compare=False)

    def as_json(self) -> Row:
        return {"op": self.op.value, "before": self.before, "after": self.after}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Some changes of one batch, with their origin; `id` is the same when the notice is sent again.

    `name` is unique in the batch.
    """

    query: str
    run: str
    batch: int
    part: int
    parts: int
    name: str
    changes: tuple[ChangeNotice, ...]

    @property
    def id(self) -> str:
        return str(uuid.uuid5(_NAMESPACE, f"{self.query}/{self.run}/{self.batch}/{self.name}"))

    def as_json(self) -> Row:
        return {
            "id": self.id,
            "query": self.query,
            "run": self.run,
            "batch": self.batch,
            "part": self.part,
            "parts": self.parts,
            "changes": [change.as_json() for change in self.changes],
        }


def notices(stream: Stream, batch: Batch, *, each: str) -> list[Notice]:
    """Return the notices of a batch: one for each row, or as few as possible."""
    changes = [change for _, change in sorted(_changes(stream, batch), key=lambda found: found[0])]
    size = 1 if each == ROW else CHANGES_MAX
    parts = [tuple(changes[at : at + size]) for at in range(0, len(changes), size)]
    names = _names_of(changes) if each == ROW else [str(n) for n in range(len(parts))]
    return [
        Notice(
            query=stream.query,
            run=batch.run,
            batch=batch.number,
            part=n,
            parts=len(parts),
            name=name,
            changes=part,
        )
        for n, (name, part) in enumerate(zip(names, parts, strict=True))
    ]


def send_all(found: Sequence[Notice], send: Callable[[Notice], None]) -> None:
    """Send notices; if single rows are refused, raise RefusedError with all of them after the others are sent."""
    refused: list[int] = []
    first: RefusedError | None = None
    for notice in found:
        try:
            send(notice)
        except RefusedError as error:
            if len(notice.changes) > 1:
                hint = "use each='row': a refused row is then identified and sent to the dead letters"
                raise InvalidError(str(error), hint=hint) from error
            first = first or error
            refused += [change.index for change in notice.changes]
            if len(refused) > REFUSALS_MAX:
                break
    if first is not None:
        raise RefusedError(str(first), rows=refused) from first


def check_each(each: str) -> None:
    if each not in (BATCH, ROW):
        raise InvalidError(f"cannot send notices with each={each!r}: expected 'batch' or 'row'")


def _changes(stream: Stream, batch: Batch) -> Iterator[tuple[bytes, ChangeNotice]]:
    """Yield changes with their sort key: the row's key, or the row itself without one."""
    texts = json_objects(batch.rows).to_pylist()
    signs = [1] * len(texts) if batch.signs is None else batch.signs.to_pylist()
    if not stream.key:
        for index, (text, sign) in enumerate(zip(texts, signs, strict=True)):
            row = json.loads(text)
            before, after = (None, row) if sign > 0 else (row, None)
            yield (
                text,
                ChangeNotice(op=Op.INSERT if sign > 0 else Op.DELETE, before=before, after=after, index=index),
            )
        return
    keys = json_objects(batch.rows.select(list(stream.key))).to_pylist()
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key, index)
        last[key] = index
    for key, end in last.items():
        start = first[key]
        before = json.loads(texts[start]) if signs[start] < 0 else None
        after = json.loads(texts[end]) if signs[end] > 0 else None
        if before is None and after is None:
            continue  # Inserted and deleted in the same batch.
        op = Op.DELETE if after is None else Op.INSERT if before is None else Op.UPDATE
        yield key, ChangeNotice(op=op, before=before, after=after, index=end)


def _names_of(changes: Sequence[ChangeNotice]) -> Iterator[str]:
    """Yield the content of each change, with a number to distinguish equal ones."""
    seen: Counter[str] = Counter()
    for change in changes:
        text = json_text(change.as_json())
        seen[text] += 1
        yield f"{text}/{seen[text]}"
