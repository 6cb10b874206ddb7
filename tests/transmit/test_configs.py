"""The table of configs: allowed values, and the precedence of values."""

import pytest

from headwater.transmit.configs import (
    TABLES,
    ConfigResource,
    ConfigSource,
    InvalidConfig,
    broker_values,
    check_config,
    check_configs,
    topic_config,
    topic_values,
)


@pytest.mark.parametrize("kind", ConfigResource)
def test_every_default_is_an_allowed_value(kind: ConfigResource) -> None:
    for name, config in TABLES[kind].items():
        check_config(kind, name, config.default)
        assert config.doc.endswith((".", "'"))


def test_every_topic_config_has_a_broker_config_as_its_default() -> None:
    for config in TABLES[ConfigResource.TOPIC].values():
        assert config.broker_name in TABLES[ConfigResource.BROKER]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"), ("retention.ms", "1.5"), ("segment.bytes", str(2**31)), ("segment.ms", "0"),
        ("min.cleanable.dirty.ratio", "1.1"), ("cleanup.policy", "delete,delete"), ("preallocate", "yes"),
        ("message.timestamp.type", "logappendtime"), ("headwater.durability", "perhaps"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_reported_with_its_config(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"configuration {name}"):
        check_config(ConfigResource.TOPIC, name, value)


def test_the_minimum_lag_must_not_exceed_the_maximum() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms"):
        check_configs(ConfigResource.TOPIC, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


def test_precedence_is_topic_then_dynamic_then_static_then_default() -> None:
    static = {"log.retention.ms": "3", "log.retention.bytes": "-1"}
    values = topic_values({"retention.ms": "1"}, broker_values(static, {"log.retention.ms": "2"}))
    assert values["retention.ms"].synonyms == (
        ("retention.ms", "1", ConfigSource.TOPIC),
        ("log.retention.ms", "2", ConfigSource.DYNAMIC_BROKER),
        ("log.retention.ms", "3", ConfigSource.STATIC_BROKER),
        ("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    )
    assert values["retention.bytes"].source is ConfigSource.DEFAULT
    assert topic_config(values).retention_ms == 1
