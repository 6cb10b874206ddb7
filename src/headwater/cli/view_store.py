"""Open the views of an app for a command."""

from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import InvalidError

if TYPE_CHECKING:
    from headwater.store.views import ViewStore


def open_store(data: Path, address: str | None = None, *, to_write: bool = False) -> "ViewStore":
    """Open the views of the app with this data directory; raise InvalidError if there is none yet."""
    from headwater.store.location import find_store
    from headwater.store.views import ViewStore

    location = find_store(data, address)
    if isinstance(location, Path) and not data.is_dir():
        raise InvalidError(
            f"cannot read views: directory {str(data)!r} does not exist",
            hint="run the app first (`headwater run APP.py`), or pass its data directory with --data",
        )
    store = ViewStore(location, read_only=True)
    if not to_write:
        return store
    store.close()
    return ViewStore(location)
