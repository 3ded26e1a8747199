# SPDX-License-Identifier: Apache-2.0
"""Device rules under a real systemd: a daemon-reload must not take the GPU away."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.integration import prestart_systemd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

OPENED = "No such device or address"  # it may be opened: there is no such GPU
DENIED = "Operation not permitted"


@pytest.mark.parametrize("cgroups", ["v1", "v2"])
def test_a_daemon_reload_keeps_what_systemd_was_told(cgroups: str, tmp_path: Path) -> None:
    tree = os.environ.get(prestart_systemd.TREE_ENV)
    if not tree or os.geteuid():
        pytest.skip(f"needs root, and {prestart_systemd.TREE_ENV}, a tree that boots")
    nspawn = os.environ.get(prestart_systemd.NSPAWN_ENV)
    if not (nspawn or shutil.which("systemd-nspawn")):
        pytest.skip("needs systemd-nspawn")

    said = prestart_systemd.run(tmp_path, tree, cgroups)

    if said and said[0].startswith("SKIP: "):
        pytest.skip(said[0].removeprefix("SKIP: "))
    assert len(said) == 4, said
    assert said[0].endswith(OPENED), said  # before untold
    assert said[1].endswith(OPENED), said  # before told
    assert said[2].endswith(DENIED), said  # after untold: the test would notice
    assert said[3].endswith(OPENED), said  # after told
