# SPDX-License-Identifier: Apache-2.0
"""After a create that was killed while it changed a root, the next create completes the root."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.forked import run_forked
from tests.support.recording_kernel import RecordingKernel
from tests.unit.container.deliver.test_layout_classic import modes
from tests.unit.container.shim.images import IMAGES, Image


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a root that may write to a sealed folder")
def test_after_a_kill_at_any_point_the_next_create_completes_the_root(tmp_path: Path) -> None:
    def image(name: str) -> Image:
        new_image = Image(tmp_path / name)
        IMAGES["compat"](new_image)
        return new_image

    counting, complete = RecordingKernel(), image("whole")
    complete.create(kernel=counting)
    calls: dict[str, int] = {}
    for number, name in enumerate(counting.names()):
        calls[name] = calls.get(name, 0) + 1
        killed = image(str(number))
        kill_point = name, "before", calls[name]

        def child(killed: Image = killed, kill_point: tuple[str, str, int] = kill_point) -> None:
            killed.create(kernel=RecordingKernel(kill_at=kill_point))

        assert os.WTERMSIG(run_forked(child)) == signal.SIGKILL, kill_point

        assert killed.create()[1] == ["without a hook"], kill_point
        (*leftovers,) = killed.root.rglob(".nvct-*")
        assert len(leftovers) <= 1, kill_point
        for path in leftovers:
            path.unlink()
        assert killed.tree() == complete.tree(), kill_point
        assert modes(killed) == modes(complete), kill_point
    assert {"mkdir", "rename", "symlink"} <= set(calls)
