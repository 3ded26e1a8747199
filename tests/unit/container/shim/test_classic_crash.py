# SPDX-License-Identifier: Apache-2.0
"""A create that is killed while it changes a root: the next one makes it as if nothing had been."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.forked import run_forked
from tests.support.recording_kernel import RecordingKernel
from tests.unit.container.deliver.test_layout_classic import modes
from tests.unit.container.shim.images import IMAGES, Image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a root that may write to a sealed folder")
def test_a_root_is_whole_at_the_next_create_wherever_one_is_killed(tmp_path: Path) -> None:
    def image(name: str) -> Image:
        made = Image(tmp_path / name)
        IMAGES["compat"](made)
        return made

    counting, whole = RecordingKernel(), image("whole")
    whole.create(kernel=counting)
    seen: dict[str, int] = {}
    for number, name in enumerate(counting.names()):
        seen[name] = seen.get(name, 0) + 1
        killed = image(str(number))
        place = name, "before", seen[name]

        def child(killed: Image = killed, place: tuple[str, str, int] = place) -> None:
            killed.create(kernel=RecordingKernel(kill_at=place))

        assert os.WTERMSIG(run_forked(child)) == signal.SIGKILL, place

        assert killed.create()[1] == ["without a hook"], place
        (*left,) = killed.root.rglob(".nvct-*")
        assert len(left) <= 1, place
        for path in left:
            path.unlink()
        assert killed.tree() == whole.tree(), place
        assert modes(killed) == modes(whole), place
    assert {"mkdir", "rename", "symlink"} <= set(seen)
