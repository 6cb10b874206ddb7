"""The parts of `./dev bench log` that need no Java: the tables, and a small run of the Python client."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.transmit.broker.embedded import Broker

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture(autouse=True)
def bench_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in {"_report", "_loads", "log"} & (set(sys.modules) - before):
        del sys.modules[name]


def test_every_measurement_is_a_row_with_medians_ratios_and_a_verdict() -> None:
    from _report import Cell, Results, Side, tables

    results = Results()
    rate = Cell("Java", "produce", "records/s", 0.8)
    start = Cell("Start", "to first record", "s", 0.1, more_is_better=False)
    for kafka, ours in ((100.0, 50.0), (200.0, 180.0), (300.0, 190.0)):
        results.add(rate, Side.KAFKA, kafka)
        results.add(rate, Side.OURS, ours)
    results.add(rate, Side.FSYNC, 20.0)
    results.add(start, Side.KAFKA, 4.0)
    results.add(start, Side.OURS, 0.5)
    lines = list(tables(results))
    assert "| produce | records/s | 200 | 180 | 0.90 | ≥ 0.8 | ok | 20.00 | 0.10 | 3 |" in lines
    assert "| to first record | s | 4.00 | 0.50 | 0.12 | ≤ 0.1 | **missed** |  |  | 1 |" in lines
    assert "**1 of 2 measurements reach their goal.**" in lines
    assert lines[-1] == "Missed goals: Start, to first record."


def test_a_measurement_without_kafka_has_no_ratio() -> None:
    from _report import Cell, Results, Side, tables

    results = Results()
    results.add(Cell("Java", "produce", "records/s", 0.8), Side.OURS, 7.0)
    assert "| produce | records/s |  | 7.00 |  | ≥ 0.8 |  |  |  | 1 |" in list(tables(results))


@pytest.mark.parametrize(("ratio", "holds"), [(0.8, True), (0.796, True), (0.79, False)])
def test_a_goal_is_judged_by_the_rounded_ratio(ratio: float, holds: bool) -> None:
    from _report import Cell

    assert Cell("", "", "", 0.8).holds(ratio) is holds


def test_the_machine_is_described() -> None:
    from _report import machine

    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in machine()


def test_the_python_client_produces_and_consumes() -> None:
    from _loads import fill, python_consume, python_produce, wait_until_ready

    from support.brokers import create_topic

    with Broker(durability="never") as broker:
        servers = broker.bootstrap_servers
        topic = create_topic(servers, "written", 2)
        wait_until_ready(servers, topic, 2)
        assert python_produce(servers, topic, 5000, 100, "all") > 0
        topic = create_topic(servers, "filled", 2)
        count = fill(servers, topic, 2, 5000, 100)
        assert count == 5120
        assert python_consume(servers, topic, count) > 0


def test_the_page_is_complete_without_results(monkeypatch: pytest.MonkeyPatch) -> None:
    import log
    from _report import Results

    monkeypatch.setattr(log, "java_version", lambda: "Java 17")
    page = log.report(Results(), log.QUICK, (0.5, 1.5))
    assert page.startswith("# The log compared with Apache Kafka\n")
    assert "**fsync.**" in page
    assert "**0 of 0 measurements reach their goal.**" in page
