"""Error codes in responses, raised as exceptions."""

from collections.abc import Mapping
from typing import Any

from headwater.errors import HeadwaterError, InvalidError, UnavailableError
from headwater.transmit.wire.codes import Code

Errors = Mapping[int, type[HeadwaterError]]


def check_code(code: int, attempt: str, message: str | None = None, *, errors: Errors | None = None) -> None:
    """Raise the exception that `errors` has for a code, or an UnavailableError; nothing if the code is NONE."""
    if code != Code.NONE:
        kind = (errors or {}).get(code, UnavailableError)
        raise kind(f"cannot {attempt}: {message or code_name(code)}")


def check_result(result: Any, attempt: str, *, hint: str | None = None) -> None:
    """Raise an InvalidError with the message of a result, unless its code is NONE."""
    if result.error_code != Code.NONE:
        raise InvalidError(f"cannot {attempt}: {result.error_message or code_name(result.error_code)}", hint=hint)


def code_name(code: int) -> str:
    """Return Kafka's name for an error code, or the number if the code is unknown."""
    return Code(code).name if code in list(Code) else f"error {code}"
