"""`headwater log`: check the files of a log."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.output import OutputFormat, OutputOption, print_json

app = typer.Typer(help="Check the files of a log.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Check the files of a log."""


@app.command("verify")
def verify(
    data: Annotated[Path, typer.Option(help="Directory of the log.")] = Path(".headwater/broker"),
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Verify every record batch and list the damaged ones; exit with 1 if there are any.

    Changes nothing. The broker may be running.

    Example: headwater log verify --data ./log
    """
    from headwater.errors import InvalidError
    from headwater.transmit.log.verify import verify_logs

    if not (data / "log").is_dir():
        raise InvalidError(
            f"cannot verify: {str(data)!r} contains no log",
            hint="pass the data directory of a broker with --data; that of an app is .headwater/broker",
        )
    found = list(verify_logs(data / "log"))
    damaged = [segment for segment in found if segment.damage is not None]
    if output is OutputFormat.JSON:
        print_json(
            {
                "segments": len(found),
                "batches": sum(segment.batches for segment in found),
                "bytes": sum(segment.size for segment in found),
                "damage": [
                    {
                        "file": str(segment.path),
                        "byte": segment.damage.position,
                        "offset": segment.damage.next_offset,
                        "reason": segment.damage.reason,
                    }
                    for segment in damaged
                    if segment.damage is not None
                ],
                "torn": [{"file": str(s.path), "bytes": s.torn_bytes} for s in found if s.torn_bytes],
            }
        )
    else:
        for segment in found:
            if segment.damage is not None:
                print(segment.damage)
            elif segment.torn_bytes:
                print(
                    f"{segment.path} ends with {segment.torn_bytes} incomplete bytes, which the next start removes"
                )
        print(
            f"{len(found)} segments, {sum(s.batches for s in found)} batches, "
            f"{sum(s.size for s in found)} bytes: {len(damaged)} segments damaged"
        )
    if damaged:
        raise typer.Exit(1)
