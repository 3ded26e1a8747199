# SPDX-License-Identifier: Apache-2.0
"""A Debian or Ubuntu release in a folder, by mmdebstrap."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from nvct.errors import ContainerNotPossibleError

KEPT_S = 600.0
"""Seconds for which a failure is cached: an unreachable mirror costs its timeout once."""


def make(
    release: str,
    folder: Path,
    options: Sequence[str],
    *,
    mirror: str,
    timeout_s: float,
    components: str = "main",
    pockets: Sequence[str] = ("",),
    more: Sequence[str] = (),
) -> None:
    """Unpack a release into a new folder; packages may also be of `more` releases.

    Raises:
        ContainerNotPossibleError: mmdebstrap cannot run here, fails, or runs into the limit.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ContainerNotPossibleError("no mmdebstrap here", hint="install mmdebstrap")
    if os.geteuid() != 0:
        raise ContainerNotPossibleError("only root puts a Debian into a folder")
    failed = folder.with_name(f"{folder.name}.failed")
    if failed.exists() and failed.stat().st_mtime > time.time() - KEPT_S:
        raise ContainerNotPossibleError(failed.read_text(encoding="utf-8"))
    command = [
        program, "--quiet", "--aptopt=APT::Install-Recommends false", *options, release,
        str(folder), *(f"deb {mirror} {release}{pocket} {components}" for pocket in pockets),
        *(f"deb {mirror} {other} {components}" for other in more),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        message = f"installing {release} does not end"
    else:
        if done.returncode == 0:
            return
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        message = f"{release} cannot be installed: {last}"
    failed.write_text(message, encoding="utf-8")
    raise ContainerNotPossibleError(message)
