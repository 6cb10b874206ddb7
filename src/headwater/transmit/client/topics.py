"""Administration of topics: describe, alter and delete them."""

from collections.abc import Mapping
from dataclasses import dataclass

from kafka.protocol.admin import DeleteTopicsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest

from headwater.transmit.client.client import Client
from headwater.transmit.client.errors import check_result

_HINT = "headwater topic list"
_TOPIC = 2
_SET, _DELETE = 0, 1
_SOURCES = {1: "topic", 2: "broker", 3: "broker", 4: "broker", 5: "default"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """A config of a topic: its value, where it is set, and its documentation."""

    name: str
    value: str | None
    source: str
    doc: str | None


def topic_settings(client: Client, topic: str) -> list[TopicSetting]:
    """Return all configs of a topic."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_TOPIC, resource_name=topic, configuration_keys=None
            )
        ],
        include_synonyms=False,
        include_documentation=True,
    )
    (result,) = client.call(request).results
    check_result(result, f"describe topic {topic!r}", hint=_HINT)
    return [
        TopicSetting(
            name=config.name,
            value=config.value,
            source=_SOURCES.get(config.config_source, "broker"),
            doc=config.documentation,
        )
        for config in result.configs
    ]


def alter_topic(client: Client, topic: str, changes: Mapping[str, str | None]) -> None:
    """Set configs of a topic; None resets a config to its default."""
    shape = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            shape(
                resource_type=_TOPIC,
                resource_name=topic,
                configs=[
                    shape.AlterableConfig(
                        name=name, value=value, config_operation=_DELETE if value is None else _SET
                    )
                    for name, value in changes.items()
                ],
            )
        ],
        validate_only=False,
    )
    (result,) = client.call(request).responses
    check_result(result, f"alter topic {topic!r}", hint=_HINT)


def delete_topic(client: Client, topic: str) -> None:
    """Delete a topic and its records."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)], topic_names=[topic], timeout_ms=30_000
    )
    (result,) = client.call(request).responses
    check_result(result, f"delete topic {topic!r}", hint=_HINT)
