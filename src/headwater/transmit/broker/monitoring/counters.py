"""Counters of the broker, reported by `metrics`."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the start. Used only from the broker's event loop."""

    connections: int = 0
    """Open connections."""
    throttled: int = 0
    """Connections that the broker does not read from because the client exceeds a quota."""
    bytes_in: int = 0
    bytes_out: int = 0
    requests: dict[int, list[float]] = field(default_factory=dict)
    """The number of answered requests and their total seconds, including waiting, by API key."""

    record_times: dict[tuple[object, int], int] = field(default_factory=dict)
    """Timestamps in the last metrics by log and offset, so that the batches are not decoded again."""

    def count_request(self, api_key: int, seconds: float) -> None:
        known = self.requests.get(api_key)
        if known is None:
            known = self.requests[api_key] = [0, 0.0]
        known[0] += 1
        known[1] += seconds
