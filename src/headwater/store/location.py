"""The location of an app's views: a file in its data directory, or a database address that is recorded there.

    views.db    the views themselves
    store       or the address of the PostgreSQL database that has them, without a password

The password is part of the address given at each start, or comes from libpq's sources (`PGPASSWORD`, `~/.pgpass`).
"""

from pathlib import Path

from headwater.errors import InvalidError
from headwater.store.databases.engine import ADDRESSES, is_address

FILE, ADDRESS_FILE = "views.db", "store"


def find_store(data: Path, address: str | None = None) -> Path | str:
    """Return the location of the views of an app by its data directory; `address` overrides the recorded one."""
    if address:
        return check_address(address)
    file = data / ADDRESS_FILE
    if file.is_file():
        return check_address(file.read_text().strip())
    return data / FILE


def record_address(data: Path, address: str | None) -> None:
    """Record the address for commands, which are given the directory only; None removes it."""
    file = data / ADDRESS_FILE
    if address is None:
        file.unlink(missing_ok=True)
        return
    from headwater.store.databases.postgres import hide_password

    data.mkdir(parents=True, exist_ok=True)
    file.write_text(hide_password(address) + "\n")


def check_address(address: str) -> str:
    """Return the address; raises InvalidError if it is not a PostgreSQL address."""
    if not is_address(address):
        raise InvalidError(
            f"cannot store views at {address!r}: expected an address like {ADDRESSES[0]}USER@HOST/DATABASE"
        )
    return address
