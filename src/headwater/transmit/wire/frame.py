"""Headers of requests and responses.

A frame is a 4-byte length followed by that many bytes. Request headers are decoded by hand, so that the body,
which may be megabytes of records, is not copied.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from headwater.errors import InvalidError
from headwater.transmit.records.codec import read_uvarint

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's default of socket.request.max.bytes."""

LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """The header of a request; its body starts at position `body_at` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_at: int


def read_request_header(
    frame: bytearray | memoryview, *, is_flexible: Callable[[int, int], bool]
) -> RequestHeader:
    """Decode the header at the start of a frame."""
    try:
        key, version, correlation_id, length = _REQUEST.unpack_from(frame)
        at = _REQUEST.size
        client_id = bytes(frame[at : at + max(length, 0)]).decode()
        at += max(length, 0)
        if is_flexible(key, version):
            at = skip_tags(frame, at)
    except (struct.error, IndexError, ValueError) as error:
        raise InvalidError(f"not a Kafka request: {error}") from error
    return RequestHeader(key, version, correlation_id, client_id, at)


def skip_tags(data: bytearray | memoryview, at: int) -> int:
    """Return the position after the tagged fields, of which a single node needs none."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def response_header(correlation_id: int, *, flexible: bool) -> bytes:
    """Encode the header of a response, without the length of the frame."""
    return _CORRELATION.pack(correlation_id) + (b"\x00" if flexible else b"")
