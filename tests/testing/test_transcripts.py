"""Transcripts on the simulator: Beam's, ours, and invalid documents."""

from pathlib import Path
from typing import Any

import pytest

from headwater.errors import InvalidError
from headwater.testing import check_transcripts, load_transcripts, run_transcripts, simulate
from headwater.testing.relation_transcripts import read_relational
from headwater.testing.transcripts import Mismatch, Transcript, read_transcript

FOLDER = Path(__file__).parents[1] / "transcripts"
ALL = [
    pytest.param(transcript, id=f"{path.stem}-{number}-{transcript.name}")
    for path in sorted(FOLDER.glob("*.yaml"))
    for number, transcript in enumerate(load_transcripts(path))
]


@pytest.mark.parametrize("transcript", ALL)
def test_transcript_holds(transcript: Transcript) -> None:
    transcript.check(simulate)


def test_all_of_beams_transcripts_are_loaded() -> None:
    assert len(load_transcripts(FOLDER / "beam_triggers.yaml")) == 18


def document(**keys: Any) -> dict[str, Any]:
    return {"name": "mine", "where": "Tumbling(10)", "transcript": [{"input": [1]}], **keys}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"wher": "Tumbling(10)"}, "transcript 'mine' has an unknown key 'wher'; the keys are"),
        ({"transcript": None}, "transcript 'mine' has no list of actions"),
        ({"transcript": [{"inputs": [1]}]}, "has an unknown action .* the actions are clock, crash"),
        ({"transcript": [{"input": [{"value": 1}]}]}, "has an element without `time`"),
        (
            {"transcript": [{"watermark": "later"}]},
            "a time in a transcript must be a number of seconds",
        ),
        (
            {"transcript": [{"watermark": {"left": 1}}]},
            "has a watermark of 'left', which is not an input; the",
        ),
        ({"where": "Rolling(10)"}, "cannot read the window .* 'Rolling' is unknown; the names are Tumbling"),
        ({"where": "Tumbling(10"}, "cannot read the window .* write it as"),
        ({"where": "Tumbling(1+1)"}, "`1 \\+ 1` is neither a name nor a value"),
        ({"where": "Tumbling()"}, "cannot read the window .*missing"),
        ({"when": "AfterCount(0)"}, "AfterCount takes a number of events, 1 or more, not 0"),
        ({"how": "adding"}, "cannot read the mode 'adding': use one of discarding"),
        ({"stamp": "middle"}, "cannot read the stamp 'middle'"),
        ({"what": {"x": "sum(colour)"}}, "needs the column 'colour', which does not exist"),
    ],
)
def test_an_invalid_document_is_rejected(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        read_transcript(document(**keys)).check(simulate)


def test_a_transcript_that_does_not_hold_reports_the_first_difference(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nwhere: Tumbling(10)\ntranscript:\n"
        "  - input: [1]\n  - watermark: 10\n  - expect: [{values: [2]}]\n"
    )
    (verdict,) = run_transcripts([path])
    assert not verdict.holds
    assert verdict.reason is not None
    assert verdict.reason.startswith("mine, action 3 (expect): unmatched output: {'values': [2]} is not among")
    with pytest.raises(AssertionError, match="unmatched output"):
        check_transcripts(path)


def test_an_expected_column_that_does_not_exist_is_rejected() -> None:
    actions = [{"input": [1]}, {"watermark": 10}, {"expect": [{"valeus": [1]}]}]
    with pytest.raises(InvalidError, match="output have no column 'valeus'; the columns are"):
        read_transcript(document(transcript=actions)).check(simulate)


def test_a_document_that_should_fail_and_holds_does_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nerror: Unmatched output\ntranscript:\n  - input: [1]\n")
    (verdict,) = run_transcripts([path])
    assert verdict.reason == "mine: holds, but should fail with 'Unmatched output'"


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("{")
    for name in ("bad.yaml", "missing.yaml"):
        with pytest.raises(InvalidError, match=f"cannot read transcripts from .*{name}"):
            run_transcripts([tmp_path / name])


def test_an_unknown_runner_is_rejected() -> None:
    with pytest.raises(InvalidError, match="cannot run transcripts on 'flink'; use one of simulator"):
        run_transcripts([], on="flink")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"top": {"n": 1}}, "has the keys join, top; give one of join, table"),
        ({"where": "Global"}, "has the keys join, where; give one of join, table"),
        ({"transcript": None}, "has no list of actions"),
        ({"transcript": [{"input": [], "from": "above"}]}, "the actions are clock, crash.* from left or right"),
        ({"join": {"how": "left"}}, "cannot make a join with the arguments {}: 'on'"),
        ({"join": {"on": "id", "withn": 5}}, "unknown withn"),
    ],
)
def test_an_invalid_relational_document_is_rejected(keys: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        read_relational({"name": "mine", "join": {"on": "id"}, "transcript": [{"input": [{"id": 1}]}], **keys})


@pytest.mark.parametrize("expected", [[], [{"id": 1}], [{"id": 1}, {"id": 2}], [{"id": 2}]])
def test_a_relational_document_that_expects_other_rows_fails(expected: Any) -> None:
    actions = [{"input": [{"id": 1}, {"id": 2}]}, {"expect": expected}]
    transcript = read_relational({"name": "mine", "aggregate": {"by": "id", "what": {"n": "count()"}},
                                  "transcript": actions})  # fmt: skip
    if len(expected) == 2:
        transcript.check(simulate)
    else:
        with pytest.raises(Mismatch, match="mine"):
            transcript.check(simulate)
