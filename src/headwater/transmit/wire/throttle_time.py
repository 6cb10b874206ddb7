"""Set the throttle time in a response that is already encoded.

The throttle time depends on the size of the encoded response. It is the first field of a body, in Produce the
last.
"""

from headwater.transmit.records.file_region import Part
from headwater.transmit.wire.apis import PRODUCE
from headwater.transmit.wire.frame import LENGTH, response_header

_PRODUCE_FLEXIBLE_FROM = 9
_FIELD_BYTES = 4


def write_throttle_time(parts: list[Part], api_key: int, version: int, *, flexible: bool, ms: int) -> None:
    """Set the throttle time in the frame that the parts make up; its size stays the same."""
    if api_key == PRODUCE:
        no_tags = 1 if version >= _PRODUCE_FLEXIBLE_FROM else 0
        at = sum(map(len, parts)) - _FIELD_BYTES - no_tags
    else:
        at = LENGTH.size + len(response_header(0, flexible=flexible))
    for number, part in enumerate(parts):
        if at < len(part):
            # The encoders never split a field: only records are parts of their own.
            assert isinstance(part, bytes)
            assert at + _FIELD_BYTES <= len(part)
            changed = bytearray(part)
            changed[at : at + _FIELD_BYTES] = ms.to_bytes(_FIELD_BYTES, "big")
            parts[number] = bytes(changed)
            return
        at -= len(part)
    raise AssertionError("the response has no throttle time")
