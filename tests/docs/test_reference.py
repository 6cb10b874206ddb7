"""The reference is generated from the code and contains every public name."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import headwater

ROOT = Path(__file__).parents[2]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["commands.md", "python.md", "http.md"])
def test_each_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs/reference" / name).read_text() == load_tool().PAGES[name](), "run ./dev docs"


def test_the_public_names_do_not_change_by_accident() -> None:
    """Adding a name is a decision; removing one breaks users."""
    assert headwater.__all__ == [
        "App", "Topic", "View", "windowed",
        "Tumbling", "Hopping", "Sliding", "Session", "Global", "EVENT_TIME", "PROCESSING_TIME",
        "AfterWatermark", "AfterCount", "AfterProcessingTime", "EveryBatch", "PerRecord",
        "Repeatedly", "AfterAny", "AfterAll", "AfterEach", "OrFinally", "Default",
        "DISCARDING", "ACCUMULATING", "RETRACTING",
        "count", "sum", "mean", "min", "max", "first", "last", "collect", "distinct", "quantile", "top_k",
        "approx_distinct", "approx_quantile", "approx_top_k",
        "table", "join", "SideInput", "aggregate", "top", "deduplicate", "rolling", "union", "correct_clocks",
        "Observed",
        "Postgres", "Sqlite", "KafkaTopic", "Parquet", "parquet_files", "read_parquet", "Delta", "Webhook", "Mail",
        "net_changes", "Views", "RunningApp", "Broker", "sink", "errors",
    ]  # fmt: skip
    assert all(getattr(headwater, name).__doc__ for name in headwater.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        headwater.nothing  # noqa: B018
