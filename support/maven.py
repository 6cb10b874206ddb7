"""Jars that benchmarks and tests compare with, downloaded with Maven and cached. Headwater itself needs none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "headwater"
WAIT_S = 600

_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_POM = (
    "<project><modelVersion>4.0.0</modelVersion><groupId>headwater</groupId><artifactId>bench</artifactId>"
    "<version>1</version><packaging>pom</packaging><dependencies>{}</dependencies></project>"
)


def jars(name: str, dependencies: Sequence[tuple[str, str, str]], *, transitive: bool = False) -> Path:
    """Return a folder with exactly these jars, or also their dependencies; download them if they are missing."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            sys.exit(f"cannot download {name}: {program} is not on the PATH; install it and run this again")
    folder = CACHE / name
    found = folder / "jars"
    if (folder / "complete").exists():
        return found
    folder.mkdir(parents=True, exist_ok=True)
    more = "" if transitive else _ALONE
    (folder / "pom.xml").write_text(_POM.format("".join(_DEPENDENCY.format(*each, more) for each in dependencies)))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={found}"]
    print(f"downloading {name} with Maven ...", flush=True)
    done = subprocess.run(
        ["mvn", "-q", "-B", *goal], cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    if done.returncode:
        sys.exit(f"cannot download {name} with Maven:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    (folder / "complete").touch()
    return found
