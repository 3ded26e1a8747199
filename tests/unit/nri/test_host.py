# SPDX-License-Identifier: Apache-2.0
"""The devices that the plugin knows: compiled again as files come and go, and only what is new."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nvct.cdi.read import load
from nvct.cdi.types import Spec
from nvct.config.model import Config
from nvct.errors import HostError
from nvct.nri import host as known
from nvct.nri.host import OWN_S, KnownHost
from nvct.nri.main import serve
from nvct.nri.plugin import Options, Plugin
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
    gc.disable()  # a collection looks at all that other tests left
    try:
        began = time.process_time()
        host.prepare()
        first = time.process_time()
        for number in range(3):
            claim(tmp_path, CLAIMS + number)
            assert len(host.plan("registry")["devices"]) == CLAIMS + number + 1
        assert time.process_time() - first < first - began
    finally:
        gc.enable()


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


def test_who_creates_does_not_wait_long_for_a_large_specification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine ends a plugin that takes two seconds, and goes on without it."""
    claim(tmp_path, 1)
    read, goes_on = load.load_file, threading.Event()

    def slow(path: str, **how: Any) -> Spec:
        assert goes_on.wait(10)
        return read(path, **how)

    monkeypatch.setattr(load, "load_file", slow)
    monkeypatch.setattr(known, "READ_S", 0.1)
    host = host_of(tmp_path)
    began = time.monotonic()
    for name in ("registry", "own", "registry"):
        with pytest.raises(HostError, match="take longer than"):
            host.plan(name)
    assert time.monotonic() - began < 1.9
    goes_on.set()
    assert host._reading is not None
    host._reading.join(10)
    assert len(host.plan("registry")["devices"]) == 1


def test_the_plugin_reads_the_specifications_before_it_connects(tmp_path: Path) -> None:
    claim(tmp_path, 1)
    config = Config().replaced(spec_dirs=(str(tmp_path),))
    plugin = Plugin(lambda: (config, None), "/nonexistent", Options(record=str(tmp_path)), print)
    stored = []

    def connect() -> socket.socket:
        stored.append(plugin._in_force()[2].stored("registry"))
        raise HostError("no engine")

    with pytest.raises(HostError, match="no engine"):
        serve(connect, plugin, "10", "nvct")
    assert stored[0] is not None


def test_devices_of_others_cost_nothing(tmp_path: Path) -> None:
    devices = [
        {"name": str(minor), "containerEdits": nodes((10, minor), path="/dev/x")}
        for minor in range(3000)
    ]
    document = {"cdiVersion": "0.5.0", "kind": "vendor.com/net", "devices": devices}
    (tmp_path / "net.json").write_text(json.dumps(document), encoding="utf-8")
    claim(tmp_path, 1, kind="nvidia.com/gpu")
    host = host_of(tmp_path)
    host.prepare()
    host.plan("own")
    began = time.process_time()
    for _ in range(5):
        assert host.names([(195, 0)]) == {"1-gpu": {(195, 0)}}
    assert time.process_time() - began < 0.02


def test_a_huge_specification_is_in_nobody_s_way(tmp_path: Path) -> None:
    """No other thread runs while YAML is parsed, and an engine waits for two seconds."""
    claim(tmp_path, 1)
    padding = "#" * known.SPEC_LIMIT
    (tmp_path / "huge.yaml").write_text(
        f"cdiVersion: 0.5.0\nkind: vendor.com/net\ndevices: []\n{padding}", encoding="utf-8"
    )
    host = host_of(tmp_path)
    host.prepare()
    plan = host.plan("registry")
    assert len(plan["devices"]) == 1
    assert "larger than" in plan["problems"][0]
