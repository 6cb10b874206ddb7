"""Kafka's variable-length integers: bytes to values and back.

Fixed-width fields are read with `struct`; only varints need functions.
"""


def read_uvarint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned varint; return it and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint is longer than ten bytes")


def read_varint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """Read a zigzag-encoded signed varint; return it and the position after it."""
    value, at = read_uvarint(data, at)
    return (value >> 1) ^ -(value & 1), at


def write_uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varint(value: int) -> bytes:
    """Encode a zigzag-encoded signed varint."""
    return write_uvarint((value << 1) ^ (value >> 63))


_ONE_BYTE = [bytes([n]) for n in range(0x80)]
