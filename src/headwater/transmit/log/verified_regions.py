"""Regions of a sealed segment whose batches have been verified against their checksums since it was opened."""

REGION_BYTES = 64 << 10
"""Size of a region; each takes one byte of memory."""


class VerifiedRegions:
    """Tracks the regions of a segment of `size` bytes in which every batch that starts there is verified."""

    def __init__(self, size: int) -> None:
        self._done = bytearray(size // REGION_BYTES + 1)
        self._reached: dict[int, int] = {}
        """By region, the position up to which it is verified, if only in part. The next reader continues there."""

    def covers(self, position: int, length: int) -> bool:
        """Return whether all batches in the range are verified."""
        first, last = position // REGION_BYTES, (position + length - 1) // REGION_BYTES
        return b"\x00" not in self._done[first : last + 1]

    def add(self, position: int, length: int, *, is_end: bool) -> None:
        """Mark the batches in a range as verified; `is_end` if the range ends with the segment."""
        first, last = position // REGION_BYTES, (position + length) // REGION_BYTES
        if position % REGION_BYTES and self._reached.get(first) != position:
            first += 1
        if is_end:
            last = len(self._done)
        elif first <= last:
            self._reached[last] = position + length
        for number in range(first, min(last, len(self._done))):
            self._done[number] = 1
            self._reached.pop(number, None)
