"""All assignors of the clients with the classic protocol; the broker only forwards their assignments."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AioSticky
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from headwater.transmit.broker.embedded import Broker

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # kafka-python's

PARTITIONS = 4
PATIENCE_S = 30.0
STRATEGY = "partition.assignment.strategy"
WAYS: list[tuple[str, dict[str, Any]]] = [
    *(("confluent-kafka", {STRATEGY: name}) for name in ("range", "roundrobin", "cooperative-sticky")),
    *(
        ("kafka-python", {"partition_assignment_strategy": [kind]})
        for kind in (
            RangePartitionAssignor,
            RoundRobinPartitionAssignor,
            StickyPartitionAssignor,
            CooperativeStickyAssignor,
        )
    ),
    *(("aiokafka", {"partition_assignment_strategy": [kind]}) for kind in (AioRange, AioRoundRobin, AioSticky)),
]


@pytest.mark.compat("assignors, cooperative ones too")
@pytest.mark.parametrize(("kind", "settings"), WAYS)
def test_members_share_and_take_over(
    broker: Broker, clients: dict[str, Any], kind: str, settings: dict[str, Any]
) -> None:
    client = clients[kind](broker.bootstrap_servers)
    client.create_topic("orders", PARTITIONS)
    members = [client.member("orders", "readers", **settings)]
    seen: list[tuple[int, int]] = []

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, [member.assignment() for member in members]
            for member in members:
                seen.extend(member.poll())

    def shared(*sizes: int) -> Callable[[], bool]:
        def check() -> bool:
            found = [member.assignment() for member in members]
            return tuple(map(len, found)) == sizes and set().union(*found) == set(range(PARTITIONS))

        return check

    try:
        until(shared(4))
        members.append(client.member("orders", "readers", **settings))
        until(shared(2, 2))
        members.pop(0).close()
        until(shared(4))
    finally:
        for member in members:
            member.close()
        client.close()
