# SPDX-License-Identifier: Apache-2.0
"""Pack a folder into a tar.gz whose bytes depend on what is in it and on a time, nothing else."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def epoch(sources: Path) -> int:
    """Return the time of the files: SOURCE_DATE_EPOCH, or of the last commit of the sources.

    Sources without a repository, and a machine without git, give 0.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    command = ["git", "-C", str(sources), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(done.stdout) if done.returncode == 0 else 0


def pack(root: Path, out: Path, when: int) -> Path:
    """Write the archive and return its path."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = when
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    with (
        aside.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=when) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        # Added in order, as a folder is added by tarfile: links come after what they are links of.
        tar.add(root, root.name, filter=plain)
    aside.replace(out)
    return out
