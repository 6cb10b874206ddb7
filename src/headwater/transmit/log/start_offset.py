"""The start offset of a log, if it is not that of its first segment: a small file next to the segments."""

from pathlib import Path

from headwater.errors import CorruptError
from headwater.files import replace_durably

_NAME = "start-offset"


def load_start(directory: Path) -> int:
    """Return the saved start offset; 0 if none was saved."""
    path = directory / _NAME
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise CorruptError(
            f"{path} does not hold an offset: {error}", hint="remove the file; deleted records reappear"
        ) from None


def save_start(directory: Path, offset: int) -> None:
    """Save the start offset; it is on disk when this returns."""
    replace_durably(directory / _NAME, f"{offset}\n".encode())
