"""Folders that a script makes whole or not at all, and anew only where its recipe has changed."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["make_folder"]

_STAMP = "made-from.txt"


def make_folder(out: Path, digest: str, fill: Callable[[Path], int]) -> None:
    """Make a folder, unless it was made from the same recipe.

    Args:
        out: where.
        digest: of all that the result depends on.
        fill: writes the files into an empty folder; returns the model's number of parameters.

    Raises:
        SystemExit: the folder holds files that were not made here.
    """
    stamp = out / _STAMP
    if stamp.is_file() and stamp.read_text("utf-8") == digest:
        print(f"{out}: already made")
        return
    if out.exists() and any(out.iterdir()) and not stamp.is_file():
        raise SystemExit(f"{out} is not empty and was not made by this script: name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    # The folder is made beside OUT and renamed, so an interrupted run never leaves a folder that
    # looks complete.
    work = Path(tempfile.mkdtemp(prefix=out.name + ".", dir=out.parent))
    try:
        work.chmod(0o755)  # mkdtemp makes it private
        parameters = fill(work)
        (work / _STAMP).write_text(digest, "utf-8")
        if out.exists():
            shutil.rmtree(out)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{out}: made, {parameters} parameters")
