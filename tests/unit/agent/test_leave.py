# SPDX-License-Identifier: Apache-2.0
"""What the agent's successor takes back before nvct is removed from a node."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent import leave
from nvct.agent.condition import condition
from nvct.agent.core import instance
from nvct.agent.core.instance import FOLDER, YIELD, Instance
from nvct.agent.core.status import Status, with_yield
from nvct.agent.heal import node as healed
from nvct.agent.kubernetes import cluster
from nvct.agent.kubernetes.cluster import ClusterError
from nvct.agent.labels import outputs
from nvct.errors import HostError
from nvct.installer import ready
from tests.support.broken_disk import break_call
from tests.support.commands import invoke


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short path: that of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("in_pod", [True, False])
def test_the_agent_yields_for_good_and_its_specifications_are_removed(
    in_pod: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod it stands by, as the kubelet would start it again; elsewhere it ends."""
    monkeypatch.setattr(instance, "GRACE_S", 0.5)
    folder, cdi = root / FOLDER[1:], root / "run/cdi"
    cdi.mkdir(parents=True)
    own, other = cdi / "k8s.device-plugin.nvidia.com-gpu.json", cdi / "nvidia.com-gpu.json"
    claim = cdi / "k8s.gpu.nvidia.com-claim_uid-1.json"
    found = root / ready.OWN_FOLDER[1:]
    found.mkdir(parents=True)
    socket, driver = found / ready.WORKER_SOCKET, found / ready.DRIVER
    for path in (own, other, claim, socket, driver):
        path.touch()

    async def yields() -> list[str]:
        yielded = asyncio.Event()
        older = Instance(str(folder))
        await older.take()
        server = with_yield(Status(()), {YIELD: yielded.set})
        await server.listen_unix(older.socket)

        async def end() -> bool:
            await yielded.wait()
            await server.close()
            older.release()
            return await older.stand_by(in_pod=in_pod)

        ending = asyncio.create_task(end())
        said = await asyncio.to_thread(leave.leave, str(root), {})
        done, _ = await asyncio.wait([ending], timeout=1.5)
        assert bool(done) is not in_pod, "it serves the node again"
        assert not done or ending.result() is False
        ending.cancel()
        return said

    said = asyncio.run(yields())

    removed = [f"removed /run/cdi/{path.name}" for path in (own, claim)]
    assert said == ["the agent no longer serves this node", *removed]
    assert (list(cdi.iterdir()), list(folder.iterdir())) == ([other], [])
    assert list(found.iterdir()) == [driver], "the installer's own uninstallation removes it"


def test_a_node_without_an_agent_has_nothing_to_leave(tmp_path: Path) -> None:
    """Not even specifications: NVIDIA's plugin gives its own the same names."""
    spec = tmp_path / "run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
    spec.parent.mkdir(parents=True)
    spec.touch()

    assert leave.leave(str(tmp_path), {}) == []
    assert spec.exists()


def test_a_folder_that_is_not_the_agents_stays(root: Path) -> None:
    folder = root / FOLDER[1:]
    (folder / "kept").mkdir(parents=True)
    (folder / "agent.lock").touch()

    assert leave.leave(str(root), {}) == ["the agent no longer serves this node"]
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_a_file_that_cannot_be_removed_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = root / FOLDER[1:]
    folder.mkdir(parents=True)
    for name in ("agent.lock", "mig-change.json"):
        (folder / name).touch()
    break_call(monkeypatch, "unlink", "mig-change.json")

    with pytest.raises(HostError) as caught:
        leave.leave(str(root), {})

    path = f"{folder}/mig-change.json"
    assert caught.value.message == f"{path} cannot be removed: Input/output error"


class Server:
    """An API server with one labelled Node, which answers a change of its labels with a status."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def find(self, *_: object) -> dict[str, Any]:
        managed = [{"manager": outputs.MANAGER}]
        conditions = [{"type": condition.TYPE, "status": "True"}]
        metadata = {"uid": "1", "managedFields": managed}
        return {"metadata": metadata, "status": {"conditions": conditions}}

    async def apply(self, _kind: object, _new: object, manager: str, **_: object) -> None:
        if manager == outputs.MANAGER and self.status:
            raise ClusterError("it may not patch nodes", status=self.status)

    async def close(self) -> None:
        """Do nothing."""


def leave_node(status: int, monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    monkeypatch.setattr(cluster, "connect", lambda *_: Server(status))
    return leave.leave(str(root), {"NODE_NAME": "n1"})


def test_labels_and_condition_of_the_node_are_removed(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    said = leave_node(0, monkeypatch, root)
    assert said == [f"removed {what} of Node n1" for what in ("the labels", "the condition")]


@pytest.mark.parametrize("status", [403, 422, 500])
def test_what_the_account_may_not_remove_is_named_and_stays(
    status: int, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """Labels of the task labels, which was switched off: the chart's account has no right to them."""
    if status == 500:  # the API server fails
        with pytest.raises(ClusterError, match="it may not patch nodes"):
            leave_node(status, monkeypatch, root)
        return
    labels, removed = leave_node(status, monkeypatch, root)
    assert labels == "the labels of Node n1 cannot be removed: it may not patch nodes"
    assert removed == "removed the condition of Node n1"


def test_what_was_asked_for_its_gpus_is_removed(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("a", healed.TAINT)]
    written = {"name": "n1", "resourceVersion": "7"}
    metadata = {**written, "uid": "1", "labels": {healed.REQUEST: "reset"}}
    patches: list[dict[str, Any]] = []

    class Healed(Server):
        async def find(self, *_: object) -> dict[str, Any]:
            return {"metadata": metadata, "spec": {"taints": taints}}

        async def merge(self, _kind: object, patch: dict[str, Any], manager: str) -> None:
            assert manager == healed.MANAGER
            patches.append(patch)

    monkeypatch.setattr(cluster, "connect", lambda *_: Healed(0))
    said = leave.leave(str(root), {"NODE_NAME": "n1"})
    assert said == ["removed the label and taint of failed GPUs of Node n1"]
    changed = {**written, "labels": {healed.REQUEST: None}}
    assert patches == [{"metadata": changed, "spec": {"taints": taints[:1]}}]


def test_where_no_agent_has_served_that_is_said(tmp_path: Path) -> None:
    done = invoke("nvct", ["agent", "--leave", f"--host-root={tmp_path}"], env={"NODE_NAME": ""})

    assert done.stderr == "no agent has served this node: there is nothing to remove\n"
