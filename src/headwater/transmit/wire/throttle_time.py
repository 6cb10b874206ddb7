"""Saying in an answer that is already written how long its client should rest.

The field is the first of a body, in Produce the last. So it can be put in when the size of the answer, on which it
depends, is known.
"""

from headwater.transmit.records.file_region import Part
from headwater.transmit.wire.apis import PRODUCE
from headwater.transmit.wire.frame import LENGTH, response_header

_PRODUCE_FLEXIBLE_FROM = 9
_FIELD_BYTES = 4


def write_throttle_time(parts: list[Part], api_key: int, version: int, *, flexible: bool, ms: int) -> None:
    """Put the throttle time into the frame that the parts make; none of its sizes change."""
    if api_key == PRODUCE:
        no_tags = 1 if version >= _PRODUCE_FLEXIBLE_FROM else 0
        at = sum(map(len, parts)) - _FIELD_BYTES - no_tags
    else:
        at = LENGTH.size + len(response_header(0, flexible=flexible))
    for number, part in enumerate(parts):
        if at < len(part):
            # The writers keep a field within one part: only what is as large as records is a part of its own.
            assert isinstance(part, bytes)
            assert at + _FIELD_BYTES <= len(part)
            changed = bytearray(part)
            changed[at : at + _FIELD_BYTES] = ms.to_bytes(_FIELD_BYTES, "big")
            parts[number] = bytes(changed)
            return
        at -= len(part)
    raise AssertionError("an answer without its throttle time")
