"""Messages of share groups and of the new consumer protocol, which kafka-python does not have.

Their fields stand in `schemas/*.json`, one file a message, and are read by kafka-python's own loader.
"""

from kafka.protocol.api_message import ApiMessage

_PACKAGE = "headwater.transmit.wire.schemas"


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: a member says that it is there, what it wants and what it has."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: its epoch, and what it is to read."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: look at groups."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-848: groups with their members and assignments."""


class ShareGroupHeartbeatRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: a member of a share group says that it is there."""


class ShareGroupHeartbeatResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: its epoch, and the partitions it is to fetch from."""


class ShareGroupDescribeRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: look at share groups."""


class ShareGroupDescribeResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: share groups with their members."""


class ShareFetchRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: acknowledge records and ask for more."""


class ShareFetchResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: whole batches, and which offsets in them are the member's."""


class ShareAcknowledgeRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: acknowledge records and ask for nothing."""


class ShareAcknowledgeResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """KIP-932: how each partition took it."""


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Ask where share groups start."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Start offsets and lag."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Move the start of an empty share group."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """How each partition took it."""


class DeleteShareGroupOffsetsRequest(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """Forget topics of an empty share group."""


class DeleteShareGroupOffsetsResponse(ApiMessage, load_json=_PACKAGE):  # type: ignore[misc, call-arg]
    """How each topic took it."""
