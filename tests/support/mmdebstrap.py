# SPDX-License-Identifier: Apache-2.0
"""A Debian or Ubuntu release in a folder, by mmdebstrap."""

from __future__ import annotations

import os
import shutil
import subprocess

from nvct.errors import ContainerNotPossibleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def make(
    release: str,
    folder: Path,
    options: Sequence[str],
    *,
    mirror: str,
    timeout_s: float,
    components: str = "main",
    pockets: Sequence[str] = ("",),
) -> None:
    """Make the folder.

    Args:
        release: its name.
        folder: is not there yet.
        options: of mmdebstrap.
        mirror: of the distribution.
        timeout_s: how long that may take.
        components: parts of the archive.
        pockets: what to add to the release's name for each of the archives that it is taken from.

    Raises:
        ContainerNotPossibleError: that cannot be done here, or does not end in time.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ContainerNotPossibleError("no mmdebstrap here", hint="install mmdebstrap")
    if os.geteuid() != 0:
        raise ContainerNotPossibleError("only root puts a Debian into a folder")
    command = [
        program, "--quiet", "--aptopt=APT::Install-Recommends false", *options, release,
        str(folder), *(f"deb {mirror} {release}{pocket} {components}" for pocket in pockets),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ContainerNotPossibleError(f"installing {release} does not end") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ContainerNotPossibleError(f"{release} cannot be installed: {last}")
