# SPDX-License-Identifier: Apache-2.0
"""The task: labels follow the machine, and stay while it does not answer; a file or the own Node has them."""

import asyncio
import contextlib
import io
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.host_side import Host
from nvct.agent.kubernetes import node_news
from nvct.agent.kubernetes.cluster import Cluster
from nvct.agent.labels import outputs, task
from nvct.agent.labels import settings as options
from nvct.agent.labels.facts import Labels
from nvct.agent.labels.outputs import NodeFeature, OwnNode
from nvct.agent.labels.settings import Settings
from nvct.agent.labels.task import NodeLabels
from nvct.agent.machine import place
from nvct.agent.machine.inventory import Inventory
from nvct.agent.nvml.client import NvmlClient, ReleasedError
from nvct.errors import DocumentError, DriverNotFoundError, HostError, NvmlError
from nvct.host.model import Gpu, MigDevice
from nvct.host.nvml.model import GpuAttributes, MigAttributes
from nvct.host.roots import Roots
from tests.unit.agent.device_plugin.fake_kubelet import until

SIZE = MigAttributes(
    memory_mib=9856, multiprocessors=16, gi_slices=1, ci_slices=1,
    copy=1, decoder=0, encoder=0, jpeg=0, ofa=0,
)  # fmt: skip


def gpu(*, mig: bool = False) -> Gpu:
    device = MigDevice(index=0, uuid="MIG-0", gi=1, ci=0, profile="1g.10gb", cap_minors=(1, 2))
    return Gpu(
        index=0, minor=0, uuid="GPU-0", bus_id="", model="NVIDIA H100", node=None,
        mig_enabled=mig, mig=(device,) if mig else (),
    )  # fmt: skip


class Machine:
    """Stands for a discovery and its NVML."""

    def __init__(self, folder: Path) -> None:
        self.roots = Roots(proc=str(folder), sys=str(folder))
        self.nvml = self
        self.host = Host(NvmlClient(None), lambda: place.Place(roots=self.roots))
        self.gpus: tuple[Gpu, ...] = (gpu(),)
        self.error: Exception | None = None
        self.asked = 0

    async def signature(self) -> tuple[object, ...]:
        return (str(self.gpus),)

    def has_driver(self) -> bool:
        return not isinstance(self.error, DriverNotFoundError)

    async def inventory(self) -> Inventory:
        self.asked += 1
        if self.error:
            raise self.error
        return Inventory(driver_version="580.1.2", cuda_version="13.0", gpus=self.gpus)

    async def attributes(self) -> dict[str, GpuAttributes]:
        mig = {"MIG-0": SIZE}
        return {
            "GPU-0": GpuAttributes(
                memory_mib=81559, compute=(9, 0), ecc=True, mig_capable=True, mig=mig
            )
        }


def no_cluster(kubeconfig: str) -> Cluster:
    raise AssertionError(f"there is no cluster {kubeconfig}")


class Lab:
    """A machine and the task that labels it by a file."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.machine = Machine(folder)
        self.output = folder / "features.d/gfd"
        self.text = io.StringIO()
        self.words = ["--use-node-feature-api=false", f"-o={self.output}", *words]
        log = Log(target=self.text)
        self.task = NodeLabels(
            lambda: options.resolve(self.words, {})[0],
            lambda _settings: self.machine,  # type: ignore[arg-type, return-value]
            lambda settings: outputs.of_settings(settings, no_cluster, log),
            log,
        )

    def labels(self) -> dict[str, str]:
        with contextlib.suppress(FileNotFoundError):
            text = self.output.read_text()
            return dict(line.split("=", 1) for line in text.splitlines())
        return {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        runs = asyncio.create_task(self.task.run())
        try:
            yield runs
        finally:
            runs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await runs


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvct.agent.core.task.MACHINE_S", 0.02)
    for name in ("SETTLE_S", "PERIOD_S", "RETRY_S"):
        monkeypatch.setattr(task, name, 0.02)


async def test_the_file_follows_the_machine_and_goes_with_the_program(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "--mig-strategy=mixed")

    async with lab.running():
        await until(lambda: lab.labels().get("nvidia.com/gpu.count") == "1")
        assert stat.S_IMODE(lab.output.stat().st_mode) == 0o644
        assert "nvidia.com/mig-1g.10gb.count" not in lab.labels()
        lab.machine.gpus = (gpu(mig=True),)
        await until(lambda: lab.labels().get("nvidia.com/mig-1g.10gb.count") == "1")
        lab.machine.gpus = (gpu(),)
        await until(lambda: "nvidia.com/mig-1g.10gb.count" not in lab.labels())
    assert os.listdir(lab.output.parent) == []


async def test_labels_stay_while_the_driver_does_not_answer(tmp_path: Path) -> None:
    lab = Lab(tmp_path)

    async with lab.running():
        await until(lambda: bool(lab.labels()))
        before = lab.labels()
        for error in (
            NvmlError("it hangs"), DriverNotFoundError("it is gone"),
            ReleasedError("it is being replaced"),
        ):  # fmt: skip
            lab.machine.error = error
            lab.machine.asked = 0
            await until(lambda: lab.machine.asked > 2)
            assert lab.labels() == before
            assert lab.task.describe()[0]["reason"] == str(error)
        lab.machine.error = None
        await until(lambda: lab.task.describe()[0]["reason"] == "")
        assert lab.task.describe()[0]["state"] == "written"
    assert lab.text.getvalue().count("it hangs") == 1


async def test_it_waits_for_a_driver_that_is_being_replaced_whatever_the_settings_say(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path)
    lab.machine.error = ReleasedError("it is being replaced")
    (tmp_path / "bus/pci/devices/0000:01:00.0").mkdir(parents=True)

    async with lab.running():
        await until(lambda: lab.machine.asked > 2)
        lab.machine.error = None
        await until(lambda: bool(lab.labels()))


async def test_without_a_driver_it_ends_or_waits(tmp_path: Path) -> None:
    ends, waits = Lab(tmp_path / "a"), Lab(tmp_path / "b", "--fail-on-init-error=false")
    ends.machine.error = waits.machine.error = DriverNotFoundError("no driver")
    device = tmp_path / "b/bus/pci/devices/0000:00:05.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de")
    (device / "config").write_bytes(bytes(256))

    with pytest.raises(DriverNotFoundError):
        await ends.task.run()
    async with waits.running():
        await until(lambda: waits.machine.asked > 2)
        assert waits.labels() == {}  # those of an earlier start must not vanish
        waits.machine.error = None
        await until(lambda: waits.labels().get("nvidia.com/gpu.count") == "1")


async def test_a_node_without_nvidia_devices_has_the_labels_of_none(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "--fail-on-init-error=false", "--no-timestamp")
    lab.machine.error = DriverNotFoundError("no driver")

    async with lab.running():
        await until(lambda: lab.labels() == {"nvidia.com/vgpu.present": "false"})


async def test_settings_are_read_again_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "--no-timestamp")

    async with lab.running():
        await until(lambda: bool(lab.labels()))
        before = lab.labels()
        lab.words.append("--mig-strategy=x")
        lab.task.reload.set()
        await until(lambda: "the settings stay as they were" in lab.text.getvalue())
        assert lab.labels() == before
        lab.words.remove("--mig-strategy=x")
        lab.words.append("--mig-strategy=single")
        lab.task.reload.set()
        await until(lambda: lab.labels().get("nvidia.com/mig.strategy") == "single")


async def test_a_file_that_was_changed_or_removed_is_written_again_after_the_interval(
    tmp_path: Path,
) -> None:
    lab = Lab(tmp_path, "--sleep-interval=50ms")

    async with lab.running():
        await until(lambda: bool(lab.labels()))
        lab.output.unlink()
        await until(lambda: bool(lab.labels()))


def test_oneshot_ends_and_leaves_the_file(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "--oneshot")

    asyncio.run(lab.task.run())

    assert lab.labels()["nvidia.com/gpu.product"] == "NVIDIA-H100"


def test_bad_files_and_folders_are_errors_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "labels.yaml").write_text("a b: c")
    with pytest.raises(DocumentError, match="'a b' is not a valid key"):
        asyncio.run(Lab(tmp_path, f"--labels-file={tmp_path}/labels.yaml").task.run())
    with pytest.raises(HostError, match="labels cannot be written to /proc/nowhere/gfd"):
        asyncio.run(Lab(tmp_path, "--output-file=/proc/nowhere/gfd").task.run())


class Place:
    """Stands for a Node from which somebody removes labels."""

    def __init__(self) -> None:
        self.writes = 0
        self.is_empty = False

    def lacks(self, _labels: Labels) -> bool:
        return self.is_empty

    async def write(self, _labels: Labels) -> None:
        self.writes += 1

    async def close(self) -> None:
        pass


async def test_removed_labels_are_written_again_at_once_and_then_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes them each time costs no request a second."""
    monkeypatch.setattr(task, "REPAIR_S", 0.3)
    lab, place = Lab(tmp_path, "--sleep-interval=1h"), Place()
    monkeypatch.setattr(lab.task, "_make_output", lambda _settings: place)

    async with lab.running():
        await until(lambda: place.writes == 1)
        await asyncio.sleep(0.4)
        assert place.writes == 1
        place.is_empty = True
        await until(lambda: place.writes == 2)
        await asyncio.sleep(0.1)
        assert place.writes == 2
        await until(lambda: place.writes == 3)


LABELS = {"nvidia.com/gpu.count": "8"}


class Server:
    """Stands for the API server with one Node."""

    def __init__(self) -> None:
        self.uid = "1"
        self.labels: dict[str, str] = {"example.com/mine": "1"}
        self.verbs: list[str] = []
        self.owners: list[dict[str, Any]] = []

    async def find(self, _kind: object, _name: str) -> dict[str, Any]:
        self.verbs.append("get")
        return {"metadata": {"uid": self.uid, "labels": dict(self.labels)}}

    async def apply(self, _kind: object, manifest: dict[str, Any], _manager: str) -> None:
        self.verbs.append("patch")
        self.labels |= manifest["metadata"]["labels"]

    async def close(self) -> None:
        pass


CHANGED = {"nvidia.com/gpu.count": "9"}


@pytest.mark.parametrize(
    ("before", "uid", "labels"),
    [
        ({}, "1", LABELS),
        # Only an apply removes what an earlier process wrote and this one leaves out.
        (LABELS, "1", LABELS),
        (LABELS, "1", {}),
        ({}, "2", LABELS),  # the Node was made again
    ],
)
def test_labels_are_written_once(before: dict[str, str], uid: str, labels: dict[str, str]) -> None:
    server = Server()
    server.labels |= before
    node = OwnNode(server, "node")  # type: ignore[arg-type]
    if uid != server.uid or not labels:
        asyncio.run(node.write(LABELS))
        server.uid, server.verbs = uid, []
    for verbs in (["get", "patch"], ["get"]):
        asyncio.run(node.write(labels))
        assert server.verbs == verbs
        server.verbs = []


@pytest.mark.parametrize("change", [{}, CHANGED])
def test_a_label_that_somebody_has_changed_or_removed_is_written_again(
    change: dict[str, str],
) -> None:
    server = Server()
    node = OwnNode(server, "node")  # type: ignore[arg-type]
    asyncio.run(node.write(LABELS))
    server.labels, server.verbs = change, []
    asyncio.run(node.write(LABELS))
    assert (server.verbs, server.labels) == (["get", "patch"], LABELS)


def test_a_watch_tells_that_labels_are_gone() -> None:
    """Of another Node, of a deleted one, and of the time before a write, nothing follows."""
    server = Server()
    node = OwnNode(server, "node")  # type: ignore[arg-type]
    without: dict[str, Any] = {"metadata": {"uid": "1"}}
    assert not node.lacks(LABELS)
    node_news.tell("other", without)
    node_news.tell("node", None)
    assert not node.lacks(LABELS)
    node_news.tell("node", without)
    assert node.lacks(LABELS)
    asyncio.run(node.write(LABELS))
    assert not node.lacks(LABELS)
    node_news.tell("node", {"metadata": {"labels": {**LABELS, "a": "b"}}})
    assert not node.lacks(LABELS)
    node_news.tell("node", without)
    assert node.lacks(LABELS)
    asyncio.run(node.close())
    node_news.tell("node", {"metadata": {"labels": LABELS}})
    assert node.lacks(LABELS), "nobody is told any more"


def test_a_bare_pod_owns_no_node_feature_and_a_pod_of_a_daemonset_does() -> None:
    told: list[str] = []

    class Pods(Server):
        async def find(self, _kind: Any, _name: str, _namespace: str = "") -> Any:
            return {"metadata": {"uid": "p", "ownerReferences": self.owners}}

    server = Pods()
    known = Settings(node_name="node", namespace="ns", pod_name="gfd-1")
    output = NodeFeature(server, known, told.append)  # type: ignore[arg-type]
    for kind in ("ReplicaSet", "DaemonSet"):
        server.owners = [{"kind": kind, "name": "gfd", "controller": True}]
        owners = asyncio.run(output._owners())
        assert [each["kind"] for each in owners] == (
            ["DaemonSet", "Pod"] if kind == "DaemonSet" else []
        )
    assert told == ["the NodeFeature object has no owner: gfd-1 does not belong to a DaemonSet"]
