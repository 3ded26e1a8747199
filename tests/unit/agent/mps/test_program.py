# SPDX-License-Identifier: Apache-2.0
"""Program mps-control-daemon: its files, its options, what it does without MPS."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import mps_watch
from nvct.agent.device_plugin.resources import GPU
from nvct.agent.machine.inventory import Inventory
from nvct.agent.mps import settings as options
from nvct.agent.mps import shm
from nvct.agent.mps.daemons import Daemon
from nvct.agent.mps.task import MpsDaemons
from nvct.errors import NvctError
from nvct.host.model import Gpu
from tests.unit.agent.device_plugin.fake_kubelet import until

UUID = "GPU-00000000-1111-5222-8333-000000000000"


@dataclass
class Nvml:
    """NVML's supervisor, which keeps no daemon."""

    state: dict[str, str] = field(default_factory=dict)
    wanted: list[Daemon] = field(default_factory=list)

    def check(self) -> None:
        """Refuse nothing."""

    async def attributes(self) -> dict[str, Any]:
        return {}

    async def mps(self, wanted: Iterable[Daemon], *, starts: bool) -> dict[str, str]:
        assert starts
        self.wanted = list(wanted)
        return {daemon.resource: self.state.get(daemon.resource, "") for daemon in self.wanted}


@dataclass
class Machine:
    """A machine with one GPU."""

    nvml: Nvml

    async def signature(self) -> tuple[object, ...]:
        return ()

    async def inventory(self) -> Inventory:
        gpu = Gpu(
            index=0, uuid=UUID, minor=0, model="NVIDIA A100", bus_id="0000:07:00.0", node=None
        )
        return Inventory(gpus=(gpu,))


def settings(folder: Path, text: str) -> list[str]:
    (folder / "config.yaml").write_text(text)
    return [f"--config-file={folder / 'config.yaml'}"]


async def test_files_tell_what_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_watch, "LOOK_S", 0.01)
    monkeypatch.setattr("nvct.agent.core.task.MACHINE_S", 0.01)
    words = settings(tmp_path, "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}")
    nvml, mps, log = Nvml({GPU: "it does not start"}), tmp_path / "mps", io.StringIO()
    (mps / GPU).mkdir(parents=True)
    started, ready = mps / GPU / ".started", mps / ".ready"
    work: Any = MpsDaemons(
        lambda: options.resolve(words, {})[0],
        Machine(nvml),  # type: ignore[arg-type]
        str(mps),
        Log(target=log),
    )

    runs = asyncio.create_task(work.run())
    await until(lambda: "it does not start" in log.getvalue())
    assert not started.exists()
    assert not ready.exists()
    assert [entry["state"] for entry in work.describe()] == ["waiting"]

    nvml.state[GPU] = ""
    await until(lambda: started.exists() and ready.exists())
    nvml.state[GPU] = "it has ended"
    await until(lambda: not started.exists() and not ready.exists())
    nvml.state[GPU] = ""
    await until(started.exists)

    settings(tmp_path, "")
    work.reload.set()
    await until(lambda: not started.exists() and not nvml.wanted)
    assert "no device is shared by MPS" in log.getvalue()
    assert ready.exists()
    runs.cancel()
    await asyncio.gather(runs, return_exceptions=True)
    assert not ready.exists()


def test_the_command_line_has_the_incumbents_options() -> None:
    assert options.resolve(["-mig-strategy", "single"], {})[0].mig_strategy == "single"
    assert options.resolve([], {"MIG_STRATEGY": "mixed"})[0].mig_strategy == "mixed"
    with pytest.raises(NvctError, match="invalid --mig-strategy"):
        options.resolve(["--mig-strategy=some"], {})
    assert "mount-shm" in options.PROGRAM.help_text()


def test_shared_memory_is_half_of_the_machines(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemFree: 5 kB\nMemTotal:       16384 kB\n")
    assert shm.size_kib(str(meminfo)) == 8192
    assert shm.size_kib(str(tmp_path / "none")) == 65536
