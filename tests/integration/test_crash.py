# SPDX-License-Identifier: Apache-2.0
"""A create that is killed at any system call leaves a config.json that is whole: old or new."""

import json
import os
import signal
from pathlib import Path

from nvct.oci import bundle as bundles
from nvct_sim.bundle import config
from tests.support.forked import run_forked
from tests.support.recording_kernel import RecordingKernel


def _edit(path: Path, kernel: RecordingKernel) -> None:
    bundle = bundles.load(str(path))
    bundle.document.append(("process", "env"), ['"ADDED=1"'])
    bundle.save(kernel)


def test_config_json_is_whole_wherever_a_create_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    before = json.dumps(config(["true"], annotations={"a": "b" * 40000}))
    path.write_text(before, encoding="utf-8")
    counting = RecordingKernel()
    _edit(path, counting)
    after = path.read_text(encoding="utf-8")
    assert after != before
    seen: dict[str, int] = {}
    places = []
    for name in counting.names():
        seen[name] = seen.get(name, 0) + 1
        places += [(name, "before", seen[name]), (name, "after", seen[name])]
    assert "rename" in seen
    assert "write" in seen
    results = set()
    for place in places:
        path.write_text(before, encoding="utf-8")

        def child(place: tuple[str, str, int] = place) -> None:
            _edit(path, RecordingKernel(kill_at=place))

        status = run_forked(child)
        assert os.WIFSIGNALED(status), place
        assert os.WTERMSIG(status) == signal.SIGKILL
        left = path.read_text(encoding="utf-8")
        assert left in (before, after), place
        results.add(left)
    assert results == {before, after}
