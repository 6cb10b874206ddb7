"""Where an app's views are: a file in its data directory, or the address that is noted there.

    views.db    the views themselves
    store       instead: the address of the PostgreSQL that has them, without a password

A password comes with the address each time, or from where libpq looks for it (`PGPASSWORD`, `~/.pgpass`).
"""

from pathlib import Path

from headwater.errors import InvalidError
from headwater.store.databases.engine import ADDRESSES, is_address

FILE, NOTE = "views.db", "store"


def find_store(data: Path, address: str | None = None) -> Path | str:
    """The place of the views of the app whose data is in a directory; `address` is stronger than what is noted."""
    if address:
        return check_address(address)
    note = data / NOTE
    if note.is_file():
        return check_address(note.read_text().strip())
    return data / FILE


def note_store(data: Path, address: str | None) -> None:
    """Leave word for the commands, which know the directory only."""
    note = data / NOTE
    if address is None:
        note.unlink(missing_ok=True)
        return
    from headwater.store.databases.postgres import hide_password

    data.mkdir(parents=True, exist_ok=True)
    note.write_text(hide_password(address) + "\n")


def check_address(address: str) -> str:
    """The address, if it is one."""
    if not is_address(address):
        raise InvalidError(
            f"cannot keep views at {address!r}: expected an address as {ADDRESSES[0]}USER@HOST/DATABASE"
        )
    return address
