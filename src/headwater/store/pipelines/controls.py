"""Controls: what users ask of an app's pipelines. The running app carries a request out, or the next one does.

    headwater_controls   query -> paused, request, refusal

`paused` outlives a restart. The app removes a `request` that it has carried out; `refusal` is the reason why it
could not.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from headwater.store.databases.engine import Db

if TYPE_CHECKING:
    from headwater.store.views import ViewStore

SCHEMA = (
    """create table if not exists headwater_controls (
    query text primary key, paused integer not null, request text, refusal text)""",
)


class Action(StrEnum):
    """A request to a pipeline."""

    PAUSE = "pause"
    RESUME = "resume"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has not been carried out yet."""

    query: str
    action: Action


class Controls:
    """The controls of an app's pipelines, in the store of its views."""

    def __init__(self, store: "ViewStore") -> None:
        self._store = store

    def paused(self) -> set[str]:
        """Return the names of the paused pipelines."""
        found = self._store.reading().execute("select query from headwater_controls where paused <> 0")
        return {query for (query,) in found}

    def set_paused(self, query: str, paused: bool) -> None:
        """Record that a pipeline is paused, or that it runs."""
        with self._store.writing() as db:
            _add(db, query)
            db.execute("update headwater_controls set paused = ? where query = ?", (int(paused), query))

    def request(self, query: str, action: Action) -> None:
        """Ask the running app for something, in place of what was asked of this pipeline before."""
        with self._store.writing() as db:
            _add(db, query)
            db.execute(
                "update headwater_controls set request = ?, refusal = null where query = ?", (str(action), query)
            )

    def requests(self) -> list[Request]:
        """Return the requests that have not been carried out."""
        found = self._store.reading().execute(
            "select query, request from headwater_controls where request is not null order by query"
        )
        return [Request(query, Action(action)) for query, action in found]

    def finish(self, request: Request, refusal: str | None = None) -> None:
        """Remove a request that was carried out, or refused with a reason, unless another one has replaced it."""
        with self._store.writing() as db:
            db.execute(
                "update headwater_controls set request = null, refusal = ? where query = ? and request = ?",
                (refusal, request.query, str(request.action)),
            )

    def refusal(self, query: str) -> str | None:
        """Return the reason why the last request to a pipeline was refused; None if it was carried out."""
        found = self._store.reading().execute("select refusal from headwater_controls where query = ?", (query,))
        return next((reason for (reason,) in found), None)

    def is_waiting(self, query: str) -> bool:
        """Return whether a request to a pipeline has not been carried out."""
        return any(request.query == query for request in self.requests())


def _add(db: Db, query: str) -> None:
    db.execute("insert into headwater_controls values (?, 0, null, null) on conflict (query) do nothing", (query,))
