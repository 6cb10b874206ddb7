"""The identity of a client, which quotas and later ACLs refer to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated identity; as text it is written as in Kafka, for example `User:alice`."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""The principal of every connection that has not authenticated; the name is Kafka's."""
