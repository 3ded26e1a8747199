# SPDX-License-Identifier: Apache-2.0
"""Daemons of MPS: their limits, what pods get, and program mps-control-daemon."""

import asyncio
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from google.protobuf import json_format

from nvct import typed
from nvct.agent.core.config_file import Sharing
from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import allocate, mps_watch
from nvct.agent.device_plugin import settings as options
from nvct.agent.device_plugin.resources import GPU, Device, Node, Resource
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.machine.inventory import Inventory
from nvct.agent.mps import daemons, shm
from nvct.agent.mps import settings as mps_options
from nvct.agent.mps.daemons import Daemon, Wanted
from nvct.agent.mps.task import MpsDaemons
from nvct.errors import HostError, NvctError, RequestError, UsageError
from nvct.host.model import Gpu
from nvct.host.nvml.model import GpuAttributes
from nvct.typed import MalformedError
from tests.unit.agent.device_plugin.fake_kubelet import until

UUIDS = [f"GPU-00000000-1111-5222-8333-{n:012x}" for n in range(2)]


def attributes_of(memory_mib: int, compute: tuple[int, int]) -> dict[str, GpuAttributes]:
    gpu = GpuAttributes(memory_mib=memory_mib, compute=compute, ecc=None, mig_capable=False)
    return dict.fromkeys(UUIDS, gpu)


VOLTA, PASCAL = attributes_of(15360, (7, 0)), attributes_of(8192, (6, 1))


def shared(
    *counts: int, name: str = GPU, instance: tuple[int, int] | None = None
) -> list[Resource]:
    devices = [
        Device(
            id=f"{UUIDS[n]}::{replica}", uuid=UUIDS[n], index=str(n), gpu=UUIDS[n],
            instance=instance, is_replica=count > 1,
        )
        for n, count in enumerate(counts)
        for replica in range(count)
    ]  # fmt: skip
    return [Resource(name=name, devices={device.id: device for device in devices})]


@pytest.mark.parametrize(
    ("counts", "attributes", "limits", "percentage"),
    [
        ((4, 4), VOLTA, {"0": 3840, "1": 3840}, 25),
        ((3, 2), VOLTA, {"0": 5120, "1": 7680}, 33),  # the most replicas determine the threads
        ((2, 2), PASCAL, {}, 0),
        ((2, 2), {}, {}, 50),
        ((2, 2), attributes_of(0, (0, 0)), {}, 50),
    ],
)
def test_memory_and_threads_are_divided_among_the_replicas(
    counts: tuple[int, ...], attributes: dict[str, GpuAttributes], limits: dict[str, int],
    percentage: int,
) -> None:  # fmt: skip
    (daemon,) = daemons.wanted(shared(*counts), attributes).values()

    uuids = tuple(UUIDS)
    assert daemon == Daemon(resource=GPU, uuids=uuids, limits=limits, percentage=percentage)
    assert daemons.from_json(typed.dump(daemon)) == daemon


def test_devices_that_are_not_shared_have_no_daemon() -> None:
    assert daemons.wanted(shared(1, 1), VOLTA) == {}
    (daemon,) = daemons.wanted(shared(1, 2), VOLTA).values()
    assert daemon.uuids == (UUIDS[1],)


@pytest.mark.parametrize(("attributes", "limit"), [(VOLTA, 48), ({}, 48), (PASCAL, 16)])
def test_there_are_as_many_replicas_as_clients(
    attributes: dict[str, GpuAttributes], limit: int
) -> None:
    assert daemons.wanted(shared(limit), attributes)
    with pytest.raises(HostError, match=f"maximum allowed replicas exceeded: {limit + 1} > "):
        daemons.wanted(shared(limit + 1), attributes)


def test_mig_devices_are_refused() -> None:
    with pytest.raises(HostError, match="MPS is not supported for MIG devices"):
        daemons.wanted(shared(2, instance=(1, 0)), VOLTA)


GOOD = MappingProxyType({"resource": GPU, "uuids": [], "limits": {}, "percentage": 0})


@pytest.mark.parametrize(
    "change",
    [
        {"resource": "nvidia.com/../../etc"},
        {"resource": "/etc"},
        {"resource": "nvidia.com/a..b"},
        {"resource": None},
        {"uuids": ["--help"]},
        {"uuids": "GPU"},
        {"limits": {"0 1": 5}},
        {"limits": {"0": "5M\nquit"}},
        {"limits": []},
        {"percentage": "5"},
        {"percentage": True},
        {"more": 1},
    ],
)
def test_another_daemon_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="MPS daemon"):
        daemons.from_json({**GOOD, **change})


def test_a_task_wants_daemons_that_can_be_started() -> None:
    daemon = Daemon(resource=GPU, uuids=())
    wanted = Wanted(daemons=(daemon,) * 256)
    assert typed.load(Wanted, typed.dump(wanted)) == wanted
    for daemons_ in ((daemon,) * 257, (Daemon(resource="nvidia.com/../../etc", uuids=()),)):
        with pytest.raises(ValueError, match="MPS daemon"):
            Wanted(daemons=daemons_)
    changes: list[dict[str, object]] = [
        {"owner": "x"}, {"daemons": [{}]}, {"daemons": {}}, {"starts": 1},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(MalformedError):
            typed.load(Wanted, {**typed.dump(Wanted()), **change})


# What pods that share a GPU by MPS get, as NVIDIA's device plugin 0.20 gives it.


NAME = "nvidia.com/gpu.shared"
UUID = "GPU-00000000-1111-5222-8333-000000000000"
PLAIN = "GPU-00000000-1111-5222-8333-000000000001"
DEVICES = [
    Device(id=f"{UUID}::0", uuid=UUID, index="0", gpu=UUID, is_replica=True),
    Device(id=f"{UUID}::1", uuid=UUID, index="0", gpu=UUID, is_replica=True),
    Device(id=PLAIN, uuid=PLAIN, index="1", gpu=PLAIN),
]
SHARED = Resource(name=NAME, devices={device.id: device for device in DEVICES})
SHARING = Sharing(strategy="mps", one_each=True)
SETTINGS = Settings(sharing=SHARING, mps_root="/run/nvidia/mps")


def answered(*ids: str, settings: Settings = SETTINGS) -> dict[str, object]:
    answer = allocate.answer(SHARED, ids, settings, Node(), "unique")
    return dict(json_format.MessageToDict(answer, preserving_proto_field_name=True))


def test_a_replica_comes_with_pipes_and_shared_memory() -> None:
    assert answered(f"{UUID}::1") == {
        "envs": {"CUDA_MPS_PIPE_DIRECTORY": f"/mps/{NAME}/pipe", "NVIDIA_VISIBLE_DEVICES": UUID},
        "mounts": [
            {
                "host_path": f"/run/nvidia/mps/{NAME}/pipe",
                "container_path": f"/mps/{NAME}/pipe",
                "read_only": True,
            },
            {"host_path": "/run/nvidia/mps/shm", "container_path": "/dev/shm"},
        ],
    }


def test_a_device_that_is_not_shared_comes_without() -> None:
    assert answered(PLAIN) == {"envs": {"NVIDIA_VISIBLE_DEVICES": PLAIN}}


def test_a_container_gets_one_replica_unless_the_file_says_else(tmp_path: Path) -> None:
    both = [f"{UUID}::0", f"{UUID}::1"]
    allowed = resolved(
        tmp_path, "--mps-root=/run/nvidia/mps", more=", failRequestsGreaterThanOne: false"
    )
    allocate.check(SHARED, both, allowed)
    for more in ("", ", failRequestsGreaterThanOne: true"):
        settings = resolved(tmp_path, "--mps-root=/run/nvidia/mps", more=more)
        with pytest.raises(RequestError, match="maximum request size for shared resources is 1"):
            allocate.check(SHARED, both, settings)


def resolved(folder: Path, *words: str, more: str = "") -> Settings:
    path = folder / "config.yaml"
    path.write_text(f"sharing: {{mps: {{resources: [{{name: gpu, replicas: 2}}]{more}}}}}")
    return options.resolve([*words, f"--config-file={path}"], {})[0]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "using MPS requires --mps-root to be specified"),
        (
            ["--mps-root=/run/nvidia/mps", "--mig-strategy=mixed"],
            "using --mig-strategy=mixed is not supported with MPS",
        ),
    ],
)
def test_what_the_incumbent_refuses_is_refused(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        resolved(tmp_path, *words)
    assert caught.value.message == sentence


def test_an_answer_for_no_device_is_empty() -> None:
    settings = Settings(
        device_list_strategy=("envvar", "cdi-annotations", "volume-mounts"), mofed_enabled=True,
        pass_device_specs=True,
    )  # fmt: skip

    answer = allocate.answer(SHARED, (), settings, Node(imex_channels=(0,)), "unique")

    assert answer.ByteSize() == 0


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
        lambda: mps_options.resolve(words, {})[0],
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
    assert mps_options.resolve(["-mig-strategy", "single"], {})[0].mig_strategy == "single"
    assert mps_options.resolve([], {"MIG_STRATEGY": "mixed"})[0].mig_strategy == "mixed"
    with pytest.raises(NvctError, match="invalid --mig-strategy"):
        mps_options.resolve(["--mig-strategy=some"], {})
    assert "mount-shm" in mps_options.PROGRAM.help_text()


def test_shared_memory_is_half_of_the_machines(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemFree: 5 kB\nMemTotal:       16384 kB\n")
    assert shm.size_kib(str(meminfo)) == 8192
    assert shm.size_kib(str(tmp_path / "none")) == 65536
