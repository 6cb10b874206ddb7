"""Node: what one broker has and is, for the handlers to work on.

On disk, below the broker's directory:

    broker.lock                    held by the process that runs it
    meta.db                        topics, committed offsets, producer ids (catalog)
    log/<topic>-<partition>-<id>/  the segments of a partition
"""

from dataclasses import dataclass
from pathlib import Path

from headwater.clock import Clock
from headwater.transmit.catalog import Catalog
from headwater.transmit.counters import Counters
from headwater.transmit.durability import Durability
from headwater.transmit.groups import Groups
from headwater.transmit.intake import Intake
from headwater.transmit.log.partition import LogSettings
from headwater.transmit.topics import Topics

NODE_ID = 1
CLUSTER_ID = "headwater"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How a broker behaves; Kafka's names, with `_` for `.`."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    """What clients are told to connect to; the listening host if None."""
    num_partitions: int = 1
    """Of a topic that is created without saying."""
    auto_create_topics_enable: bool = True
    durability: Durability = Durability.FSYNC
    segment_bytes: int = 1 << 30
    message_max_bytes: int = 1_048_588
    queued_max_request_bytes: int = 128 << 20
    """Of all requests that are being received or wait for the disk; beyond it clients are not read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where clients find this node."""

    host: str
    port: int


@dataclass(slots=True, kw_only=True)
class Node:
    """The parts of a running broker. Used from its loop only."""

    settings: BrokerSettings
    endpoint: Endpoint
    clock: Clock
    catalog: Catalog
    topics: Topics
    groups: Groups
    intake: Intake
    counters: Counters


def open_node(settings: BrokerSettings, endpoint: Endpoint, clock: Clock) -> Node:
    """Open what is on disk, recovering what a crash left behind."""
    catalog = Catalog(settings.data / "meta.db")
    topics = Topics(
        settings.data / "log",
        catalog,
        log_settings=LogSettings(segment_bytes=settings.segment_bytes),
        durability=settings.durability,
    )
    return Node(
        settings=settings,
        endpoint=endpoint,
        clock=clock,
        catalog=catalog,
        topics=topics,
        groups=Groups(),
        intake=Intake(settings.queued_max_request_bytes),
        counters=Counters(),
    )
