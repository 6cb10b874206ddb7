"""What surrounds a message: the header of a request and of a response.

A frame is a 4-byte length and that many bytes. A request's header is read by hand, so that the body (which may
be megabytes of records) is not copied on the way.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from headwater.errors import InvalidError
from headwater.transmit.records.codec import read_uvarint

FRAME_BYTES_MAX = 100 * 1024 * 1024
"""Kafka's own default of socket.request.max.bytes."""

LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")


class RequestHeader(NamedTuple):
    """Who asks what: `body_at` is the place in the frame where the message itself starts."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_at: int


def read_request_header(
    frame: bytearray | memoryview, *, is_flexible: Callable[[int, int], bool]
) -> RequestHeader:
    """Read the header at the start of a frame."""
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
    """Step over tagged fields; none of them carries anything that one node needs."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def response_header(correlation_id: int, *, flexible: bool) -> bytes:
    """The header of a response, without the frame's length."""
    return _CORRELATION.pack(correlation_id) + (b"\x00" if flexible else b"")
