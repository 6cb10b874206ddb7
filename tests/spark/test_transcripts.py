"""The transcripts that hold on the simulator hold on Spark."""

from pathlib import Path
from typing import Any

import pytest

from headwater.testing import run_transcripts

TRANSCRIPTS = sorted((Path(__file__).parents[1] / "transcripts").glob("*.yaml"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcripts_hold_on_spark(spark: Any, path: Path) -> None:
    verdicts = run_transcripts([path], on="spark")
    assert verdicts
    assert [verdict.reason for verdict in verdicts if not verdict.holds] == []
