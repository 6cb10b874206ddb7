"""Encoded responses, ready to be sent."""

from headwater.transmit.records.file_region import Part

Parts = list[Part]


class ThrottledParts(list[Part]):
    """The parts of a response after which the broker does not read from the client for `throttle_s`."""

    __slots__ = ("throttle_s",)

    def __init__(self, parts: list[Part], throttle_s: float) -> None:
        super().__init__(parts)
        self.throttle_s = throttle_s
