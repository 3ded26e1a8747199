# SPDX-License-Identifier: Apache-2.0
"""A hook that is killed at any moment leaves complete files; the next start finishes the work."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from nvct.container.cdi_hook import apply
from nvct.container.cdi_hook.context import Context
from nvct.container.plan.hook_command import Options
from nvct.linux import ldcache
from nvct.linux.kernel import Kernel
from tests.support.containers import Container
from tests.support.forked import run_forked
from tests.support.recording_kernel import RecordingKernel


def container_in(folder: Path) -> Container:
    container = Container(folder)
    container.file("/lib64/ld-linux-x86-64.so.2")
    container.library("/drv/libcuda.so.580.1", "libcuda.so.1")
    old = ldcache.merge(None, [("libc.so.6", "/lib/libc.so.6")], machine="x86_64")
    container.file("/etc/ld.so.cache", old)
    return container


def run_apply(container: Container, kernel: Kernel) -> None:
    state = container.bundle / "state"
    state.write_text(f'{{"bundle": "{container.bundle}"}}')
    options = Options()
    options.given = {
        "container-spec": [str(state)],
        "folder": ["/drv"],
        "link": ["libcuda.so.580.1::/drv/libcuda.so.1"],
    }
    context = Context(options, -1, pytest.fail, kernel=kernel)
    try:
        apply.run(context)
    finally:
        context.close()


def without_temporaries(tree: dict[str, str]) -> dict[str, str]:
    return {path: data for path, data in tree.items() if "/.nvct-" not in path}


def test_after_a_kill_at_any_point_the_cache_is_complete_and_the_next_start_finishes(
    tmp_path: Path,
) -> None:
    complete = container_in(tmp_path / "whole")
    before = complete.tree()["etc/ld.so.cache"]
    recorder = RecordingKernel()
    run_apply(complete, recorder)
    after = complete.tree()
    names = recorder.names()
    assert {"symlink", "rename", "write"} <= set(names)
    points = [
        (name, when, number)
        for name in dict.fromkeys(names)
        for number in range(1, names.count(name) + 1)
        for when in ("before", "after")
    ]

    for point in points:
        container = container_in(tmp_path / "killed")
        status = run_forked(lambda c=container, p=point: run_apply(c, RecordingKernel(p)))  # type: ignore[misc]  # bound here
        assert os.WTERMSIG(status) == signal.SIGKILL, point
        assert container.tree()["etc/ld.so.cache"] in {before, after["etc/ld.so.cache"]}, point
        run_apply(container, Kernel())
        assert without_temporaries(container.tree()) == after, point
        shutil.rmtree(tmp_path / "killed")
