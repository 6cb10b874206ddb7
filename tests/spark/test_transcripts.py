"""Transcripts that pass on the simulator pass on Spark: all of Beam's, and those of ours that Spark could break.

All of ours, which take minutes: `headwater transcript tests/transcripts/*.yaml --on spark`.
"""

from pathlib import Path
from typing import Any

import yaml

from headwater.testing import run_transcripts

FOLDER = Path(__file__).parents[1] / "transcripts"
CHOSEN = {
    "merging_sessions_retract_all_their_panes",
    "delay_after_the_first_event",
    "results_are_windowed_again",
    "crash_and_restart_change_nothing",
    "a_click_within_a_minute_of_its_search",
}


def test_beams_transcripts_pass_on_spark(spark: Any) -> None:
    verdicts = run_transcripts([FOLDER / "beam_triggers.yaml"], on="spark")
    assert len(verdicts) == 18
    assert [verdict.reason for verdict in verdicts if not verdict.holds] == []


def test_some_of_our_transcripts_pass_on_spark(spark: Any, tmp_path: Path) -> None:
    files = (FOLDER / "headwater.yaml", FOLDER / "tables.yaml", FOLDER / "joins.yaml")
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    chosen = [document for document in documents if document["name"] in CHOSEN]
    (tmp_path / "chosen.yaml").write_text(yaml.safe_dump_all(chosen))
    verdicts = run_transcripts([tmp_path / "chosen.yaml"], on="spark")
    assert len(verdicts) == len(CHOSEN)
    assert [verdict.reason for verdict in verdicts if not verdict.holds] == []
