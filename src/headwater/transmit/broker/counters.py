"""What the broker counts while it works; `metrics` shows it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Totals since the start. Used from the broker's loop only."""

    connections: int = 0
    """Open now."""
    resting: int = 0
    """Of these, how many are not read from because their client is above its quota."""
    bytes_in: int = 0
    bytes_out: int = 0
    requests: dict[int, list[float]] = field(default_factory=dict)
    """For each request type how many were answered, and the seconds they took together, waiting included."""

    record_times: dict[tuple[object, int], int] = field(default_factory=dict)
    """Timestamps that the last metrics told of, by log and offset, so that no batch is unpacked twice for them."""

    def note_request(self, api_key: int, seconds: float) -> None:
        known = self.requests.get(api_key)
        if known is None:
            known = self.requests[api_key] = [0, 0.0]
        known[0] += 1
        known[1] += seconds
