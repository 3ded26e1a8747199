# SPDX-License-Identifier: Apache-2.0
"""Device rules under a real systemd: a daemon-reload must not take the GPU away."""

from pathlib import Path

import pytest

from tests.integration import prestart_systemd, systemd_box

OPENED = "No such device or address"  # it may be opened: there is no such GPU
DENIED = "Operation not permitted"


@pytest.mark.slow
@pytest.mark.parametrize("cgroups", ["v1", "v2"])
def test_a_daemon_reload_keeps_what_systemd_was_told(cgroups: str, tmp_path: Path) -> None:
    tree = systemd_box.tree()

    said = prestart_systemd.run(tmp_path, tree, cgroups)

    assert len(said) == 4, said
    assert said[0].endswith(OPENED), said  # before untold
    assert said[1].endswith(OPENED), said  # before told
    assert said[2].endswith(DENIED), said  # after untold: the test would notice
    assert said[3].endswith(OPENED), said  # after told
