"""Where a log starts, if that is not its first segment: a small file beside them, written whole and renamed."""

from pathlib import Path

from headwater.errors import CorruptError
from headwater.files import replace_durably

_NAME = "start-offset"


def load_start(directory: Path) -> int:
    """The first offset that was not deleted, as far as it was ever said; else 0."""
    path = directory / _NAME
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise CorruptError(
            f"{path} does not hold an offset: {error}", hint="remove it; deleted records come back"
        ) from None


def save_start(directory: Path, offset: int) -> None:
    """Remember it; on the disk when this returns."""
    replace_durably(directory / _NAME, f"{offset}\n".encode())
