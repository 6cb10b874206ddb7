"""What a client may do, for those who ask to be told: everything, because there is no authorizer.

Kafka's numbers of operations; on the wire they are bits of one number. https://kafka.apache.org/protocol (KIP-430)
"""

from enum import IntEnum

NOT_ASKED = -(2**31)
"""Instead of the bits, to those who did not ask."""


class Operation(IntEnum):
    """What an authorizer would allow or not."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_CONFIGS = {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
ON_CLUSTER = frozenset(
    {Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE}
    | _CONFIGS
)
ON_TOPIC = frozenset(
    {Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE}
    | _CONFIGS
)
ON_GROUP = frozenset({Operation.READ, Operation.DELETE, Operation.DESCRIBE} | _CONFIGS)


def reported(allowed: frozenset[Operation], *, asked: bool | None) -> frozenset[Operation] | None:
    """The operations, if they were asked for, as kafka-python's messages take them."""
    return allowed if asked else None


def bits(allowed: frozenset[Operation], *, asked: bool | None) -> int:
    """The operations, if they were asked for, as a number."""
    return sum(1 << operation for operation in allowed) if asked else NOT_ASKED
