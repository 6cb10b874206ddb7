"""`headwater transcript`: run transcripts, which are tests of windowed computations, tables and joins."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.output import OutputFormat, OutputOption, print_json


def transcript(
    files: Annotated[list[Path], typer.Argument(help="YAML files with one transcript per document.")],
    on: Annotated[str, typer.Option(help="Where to run them: simulator or spark.")] = "simulator",
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Run transcripts: the input of a computation over time, and the output that is expected.

    Prints which transcripts pass, and exits with 1 if one fails.
    The clock is part of the transcript: nothing waits.

    Example: headwater transcript sessions.yaml
    """
    from headwater.testing import run_transcripts

    verdicts = run_transcripts(files, on=on)
    broken = [verdict for verdict in verdicts if not verdict.holds]
    if output is OutputFormat.JSON:
        print_json([{"file": v.file, "name": v.name, "holds": v.holds, "reason": v.reason} for v in verdicts])
    else:
        for verdict in verdicts:
            print(f"holds   {verdict.name}" if verdict.holds else f"BROKEN  {verdict.reason}")
        print(f"{len(verdicts)} transcripts on the {on}: {len(verdicts) - len(broken)} hold, {len(broken)} do not")
    if broken:
        raise typer.Exit(1)
