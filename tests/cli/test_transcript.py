"""`headwater transcript`: results as text and JSON, and the exit code."""

import json
from pathlib import Path

from typer.testing import CliRunner

from headwater.cli import app

BEAM = Path(__file__).parents[1] / "transcripts" / "beam_triggers.yaml"


def test_beams_transcripts_hold() -> None:
    result = CliRunner().invoke(app, ["transcript", str(BEAM)])
    assert result.exit_code == 0
    assert "holds   early_late_sessions" in result.output
    assert "18 transcripts on the simulator: 18 hold, 0 do not" in result.output


def test_a_failing_transcript_is_named_and_exits_with_1(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nwhere: Tumbling(10)\ntranscript:\n  - input: [1]\n  - watermark: 10\n")
    result = CliRunner().invoke(app, ["transcript", str(path), "--output", "json"])
    assert result.exit_code == 1
    (verdict,) = json.loads(result.output)
    assert (verdict["name"], verdict["holds"]) == ("mine", False)
    assert verdict["reason"].startswith("mine: unexpected output at the end")
    assert "BROKEN  mine: unexpected output" in CliRunner().invoke(app, ["transcript", str(path)]).output
