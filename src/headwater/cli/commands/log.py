"""`headwater log`: the files of a log."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.output import OutputFormat, OutputOption, print_json

app = typer.Typer(help="Look after the files of a log.", no_args_is_help=True)


@app.callback()
def log() -> None:
    """Look after the files of a log."""


@app.command("verify")
def verify(
    data: Annotated[Path, typer.Option(help="Directory of the log.")] = Path(".headwater/broker"),
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Read every record batch, check it, and name what is damaged; exits with 1 if something is.

    Nothing is changed, and a broker may be running meanwhile.

    Example: headwater log verify --data ./log
    """
    from headwater.errors import InvalidError
    from headwater.transmit.log.verify import verify_logs

    if not (data / "log").is_dir():
        raise InvalidError(f"there is no log in {str(data)!r}", hint="name a broker's directory with --data")
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
                print(f"{segment.path} ends in {segment.torn_bytes} bytes that the next start cuts off")
        print(
            f"{len(found)} segments, {sum(s.batches for s in found)} batches, "
            f"{sum(s.size for s in found)} bytes: {len(damaged)} segments are damaged"
        )
    if damaged:
        raise typer.Exit(1)
