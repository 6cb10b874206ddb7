"""The databases of an app: its views, and the facts about its queries."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headwater.app import App
from headwater.assembly.settings import RunSettings

if TYPE_CHECKING:
    from headwater.store.pipelines.facts import FactStore
    from headwater.store.views import ViewStore

FACTS_FILE = "facts.db"


class Stores(NamedTuple):
    """The open databases of an app."""

    views: "ViewStore"
    facts: "FactStore"


@contextmanager
def open_stores(app: App, settings: RunSettings) -> Iterator[Stores]:
    """Open the views where the settings or the app put them, and record the address for other commands."""
    from headwater.store.location import FILE, check_address, record_address
    from headwater.store.pipelines.facts import FactStore
    from headwater.store.views import ViewStore

    address = settings.store or app.store
    location = settings.data / FILE if address is None else check_address(address)
    with closing(ViewStore(location)) as views:
        views.claim(app.name)
        record_address(settings.data, address)
        yield Stores(views, FactStore(settings.data / FACTS_FILE))
