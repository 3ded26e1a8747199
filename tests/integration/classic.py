# SPDX-License-Identifier: Apache-2.0
"""The classic layout in real containers on a simulated node; each function is a process."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.integration.inside import UUID, configure, make, run

ASKS = ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"]
LIBDIR = "/usr/lib/*-linux-gnu"
SCRIPT = (
    "nvidia-smi -L; ldconfig -p | grep -c 'libcuda.so.1 '; ldconfig;"
    f"ldconfig -p | grep -c 'libcuda.so.1 '; readlink {LIBDIR}/libcuda.so;"
    "cat /etc/nvidia/nvidia-application-profiles-rc.d/*; echo;"
    f"for f in {LIBDIR}/libcuda.so.5*; do (: >> $f) 2>&- && echo written; done; echo done"
)


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return document


def no_hook(work: Path) -> None:
    """A container has its driver by mounts alone, at its first start and at the next one."""
    configure(work, layout="classic")
    folder = make(work, "plain", SCRIPT, env=ASKS)
    engines = (folder / "config.json").read_bytes()
    for _ in range(2):
        (folder / "config.json").write_bytes(engines)
        said = run(work, folder)
        assert said.returncode == 0, said
        assert "hooks" not in _document(folder)
        assert len(UUID.findall(said.stdout)) == 1, said
        listed, relisted, link, profile, *rest = said.stdout.splitlines()[1:]
        assert (listed, relisted, link) == ("1", "1", "libcuda.so.1"), said
        assert "EGLVisibleDGPUDevices" in profile, said
        assert rest == ["done"], said


def hook(work: Path) -> None:
    """Who wants the mask has a hook, which makes the root as the shim does."""
    configure(work, layout="classic")
    bare = make(work, "bare", SCRIPT, env=ASKS)
    without = run(work, bare)
    configure(work, '[nvct]\nlayout = "classic"\nparams-mask = "true"\n')
    folder = make(work, "masked", SCRIPT, env=ASKS)
    said = run(work, folder)
    assert len(_document(folder)["hooks"]["createContainer"]) == 1
    assert (said.returncode, said.stdout) == (0, without.stdout), said
    roots = [folder / "rootfs", bare / "rootfs"]
    trees = [{str(p.relative_to(root)) for p in root.rglob("*")} for root in roots]
    assert trees[0] == trees[1], trees[0] ^ trees[1]
    shutil.rmtree(folder)
