# SPDX-License-Identifier: Apache-2.0
"""The devices that the plugin knows: compiled again as files come and go, and only what is new."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nvct.config.model import Config
from nvct.nri.host import OWN_S, KnownHost
from tests.support.policy_lab import nodes

CLAIMS = 300


def claim(folder: Path, number: int, gpu: int = 0, **more: Any) -> Path:
    """Write the specification of a claim, as a DRA driver does."""
    mount = {
        "hostPath": "/usr/lib/libx.so",
        "containerPath": "/usr/lib/libx.so",
        "options": ["ro"],
    }
    edits = {**nodes((195, gpu)), "env": [f"CLAIM={number}"], "mounts": [mount] * 10}
    device = {"name": f"{number}-gpu", "containerEdits": edits}
    document = {
        "cdiVersion": "0.5.0", "kind": "k8s.gpu.nvidia.com/claim", "devices": [device], **more,
    }  # fmt: skip
    path = folder / f"claim-{number}.json"
    new = folder / "new"
    new.write_text(json.dumps(document), encoding="utf-8")
    os.utime(new, (number, number))  # an old file: its content is not read to compare it
    return new.replace(path)


def host_of(folder: Path) -> KnownHost:
    return KnownHost(Config().replaced(spec_dirs=(str(folder),)), "/nonexistent")


def test_a_changed_folder_gives_what_a_new_start_would(tmp_path: Path) -> None:
    kept = host_of(tmp_path)
    steps: list[Callable[[], object]] = [
        partial(claim, tmp_path, 1),
        partial(claim, tmp_path, 2, gpu=1),
        partial(claim, tmp_path, 1, gpu=2),
        partial(claim, tmp_path, 3, devices=[]),
        partial(claim, tmp_path, 3, gpu=3),
        lambda: (tmp_path / "same.json").write_bytes((tmp_path / "claim-2.json").read_bytes()),
        (tmp_path / "claim-2.json").unlink,
        lambda: (tmp_path / "claim-1.json").write_text("{", encoding="utf-8"),
    ]
    seen = []
    for step in steps:
        step()
        plan = kept.plan("registry")
        fresh = host_of(tmp_path).plan("registry")
        for part in ("devices", "edits", "specs", "kinds", "problems", "conflicts"):
            assert plan[part] == fresh[part], part
        seen.append(json.dumps([plan["devices"], plan["edits"], plan["problems"]]))
    assert len(set(seen)) > len(steps) - 2


def test_a_new_claim_beside_many_costs_little(tmp_path: Path) -> None:
    for number in range(CLAIMS):
        claim(tmp_path, number)
    host = host_of(tmp_path)
    began = time.process_time()
    host.plan("registry")
    first = time.process_time()
    for number in range(3):
        claim(tmp_path, CLAIMS + number)
        assert len(host.plan("registry")["devices"]) == CLAIMS + number + 1
    assert (time.process_time() - first) / 3 < (first - began) / 3


def test_procfs_is_read_once_in_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    root = tmp_path / "proc/driver/nvidia/gpus"
    specs = tmp_path / "cdi"
    specs.mkdir()
    host = KnownHost(
        Config().replaced(spec_dirs=(str(specs),), proc_root=str(tmp_path / "proc")),
        "/nonexistent",
    )

    def attach(minor: int) -> None:
        folder = root / f"0000:0{minor}:00.0"
        folder.mkdir(parents=True)
        text = f"GPU UUID: GPU-{minor}\nDevice Minor: {minor}\n"
        (folder / "information").write_text(text, encoding="utf-8")

    def known() -> int:
        return len(host.names([(195, minor) for minor in range(4)]))

    attach(1)
    assert known() == 1
    attach(2)
    assert known() == 1
    now += OWN_S
    assert known() == 2
    attach(3)
    claim(specs, 1)  # of other devices: everything is read again
    assert known() == 3
