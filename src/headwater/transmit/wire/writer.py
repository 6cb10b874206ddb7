"""Encoding of response fields, in the plain or the compact form."""

import struct

from headwater.transmit.records.codec import write_uvarint

INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
NO_TAGS = b"\x00"


def array(length: int, flexible: bool) -> bytes:
    """Encode the length of an array."""
    return write_uvarint(length + 1) if flexible else INT.pack(length)


def string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = text.encode()
    return (write_uvarint(len(data) + 1) if flexible else _SHORT.pack(len(data))) + data
