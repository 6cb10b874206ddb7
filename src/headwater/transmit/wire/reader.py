"""Decoding of request fields, in the plain or the compact form."""

import struct
import uuid

from headwater.transmit.records.codec import read_uvarint
from headwater.transmit.wire.frame import skip_tags

INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_UUID_BYTES = 16


class FieldReader:
    """Decodes one field after the other, starting at `at`.

    Truncated or malformed data raises struct.error, IndexError or ValueError.
    """

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: memoryview, at: int, *, flexible: bool) -> None:
        self._data = data
        self._at = at
        self._flexible = flexible

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def length(self, plain: struct.Struct) -> int:
        """Read the length of a string, byte string or array; -1 for null."""
        if not self._flexible:
            return self.unpack(plain)[0]
        value, self._at = read_uvarint(self._data, self._at)
        return value - 1

    def array(self) -> int:
        return self.length(INT)

    def string(self) -> str | None:
        text = self._take(self.length(_SHORT))
        return None if text is None else str(text, "utf-8")

    def blob(self) -> memoryview | None:
        return self._take(self.length(INT))

    def uuid(self) -> uuid.UUID:
        value = uuid.UUID(bytes=bytes(self._data[self._at : self._at + _UUID_BYTES]))
        self._at += _UUID_BYTES
        return value

    def tags(self) -> None:
        if self._flexible:
            if self._data[self._at] == 0:  # no tags, as in nearly every message
                self._at += 1
            else:
                self._at = skip_tags(self._data, self._at)

    def _take(self, length: int) -> memoryview | None:
        if length < 0:
            return None
        end = self._at + length
        if end > len(self._data):
            raise IndexError(f"a field has {length} bytes, but only {len(self._data) - self._at} are left")
        taken = self._data[self._at : end]
        self._at = end
        return taken
