"""The table of configs: what it takes, and whose value counts."""

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
def test_every_default_is_a_value_that_is_taken(kind: ConfigResource) -> None:
    for name, config in TABLES[kind].items():
        check_config(kind, name, config.default)
        assert config.doc.endswith((".", "'"))


def test_every_topic_config_has_a_default_at_the_broker() -> None:
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
def test_a_value_that_does_not_fit_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"configuration {name}"):
        check_config(ConfigResource.TOPIC, name, value)


def test_lags_must_be_in_order() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms"):
        check_configs(ConfigResource.TOPIC, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


def test_the_topic_counts_before_the_running_broker_before_its_start_before_the_default() -> None:
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
