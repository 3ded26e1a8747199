# SPDX-License-Identifier: Apache-2.0
"""A pod that ends while a newer one of its DaemonSet starts: it serves until that one takes over."""

import asyncio
from pathlib import Path

import pytest

from nvct.agent.core import instance
from nvct.agent.core.instance import Instance
from nvct.agent.core.program import GRACE_ENV, GRACE_S, grace_s
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.errors import UsageError
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.kubelet.test_pod_resources import kubelet
from tests.unit.agent.test_agent import agent, folder, forever

__all__ = ["folder"]
IN_A_POD = {instance.POD_ENV: "10.0.0.1"}
OWN = "nvct-x2x2x"


def coming(*pods: str, socket: Path, env: dict[str, str] | None = None) -> bool:
    """Ask a kubelet with these pods."""
    answer = api.ListPodResourcesResponse(
        pod_resources=[api.PodResources(name=name, namespace="nvct") for name in pods]
    )

    async def ask() -> bool:
        async with kubelet(socket, "v1", answer):
            return await instance.successor_is_coming(
                IN_A_POD if env is None else env, OWN, str(socket)
            )

    return asyncio.run(ask())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "LOOK_S", 0.01)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("pods", "answer"),
    [
        ((), False),
        ((OWN, "nvct-uninstall-x2x2x", "nvct-5b4f7-x2x2x", "train", "other-x2x2x"), False),
        ((OWN, "nvct-b4b4b"), True),
    ],
)
def test_a_newer_pod_has_the_name_of_the_same_daemon_set(
    pods: tuple[str, ...], *, answer: bool, tmp_path: Path
) -> None:
    assert coming(*pods, socket=tmp_path / "kubelet.sock") is answer


@pytest.mark.usefixtures("impatient")
def test_nothing_is_coming_without_a_kubelet_or_outside_of_pods(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    assert not coming("nvct-b4b4b", socket=socket, env={})
    assert not asyncio.run(instance.successor_is_coming(IN_A_POD, OWN, str(socket)))
    socket.touch()
    assert not asyncio.run(instance.successor_is_coming(IN_A_POD, OWN, str(socket)))


def test_a_pod_that_is_scheduled_a_moment_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance, "LOOK_S", 0.05)
    socket, answer = tmp_path / "kubelet.sock", api.ListPodResourcesResponse()

    async def ask() -> bool:
        async with kubelet(socket, "v1", answer):
            asked = asyncio.create_task(instance.successor_is_coming(IN_A_POD, OWN, str(socket)))
            await asyncio.sleep(0.05)
            answer.pod_resources.add(name="nvct-b4b4b", namespace="nvct")
            return await asked

    assert asyncio.run(ask())


def a_newer_pod(monkeypatch: pytest.MonkeyPatch, *, comes: bool | None) -> None:
    """Have one come or not; None is a question that fails."""

    async def answer(*_: object) -> bool:
        if comes is None:
            raise RuntimeError("a defect")
        return comes

    monkeypatch.setattr("nvct.agent.main.successor_is_coming", answer)


async def test_it_ends_when_the_newer_one_has_taken_over(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_newer_pod(monkeypatch, comes=True)
    older, newer, stopped = agent(forever), Instance(folder), asyncio.Event()
    serves = asyncio.create_task(older.serve(Instance(folder), stopped))
    await until(lambda: older.tasks[0].state == "running")
    ends = asyncio.create_task(older.end(stopped))
    await asyncio.sleep(0.1)
    assert (older.status.part, older.tasks[0].state) == ("serving", "running")
    await newer.take()
    await serves
    assert older.tasks[0].state == "stopped"
    ends.cancel()
    newer.release()


@pytest.mark.parametrize(
    "why", ["nothing comes", "it comes too late", "a second signal", "the question fails"]
)
async def test_it_ends_without_one(why: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comes = {"nothing comes": False, "the question fails": None}.get(why, True)
    a_newer_pod(monkeypatch, comes=comes)
    made, stopped = agent(forever), asyncio.Event()
    made.grace_s = instance.MARGIN_S if why == "it comes too late" else 10**6
    serves = asyncio.create_task(made.serve(Instance(folder), stopped))
    await until(lambda: made.tasks[0].state == "running")
    signals = [asyncio.create_task(made.end(stopped))]
    if why == "a second signal":
        await asyncio.sleep(0)
        signals.append(asyncio.create_task(made.end(stopped)))
    await serves
    if comes is None:
        with pytest.raises(RuntimeError, match="a defect"):
            await signals[0]
    signals[0].cancel()


async def test_one_that_does_not_serve_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a_newer_pod(monkeypatch, comes=True)
    made, stopped = agent(forever), asyncio.Event()
    await made.end(stopped)
    assert stopped.is_set()


def test_a_grace_that_is_no_number_is_refused() -> None:
    assert (grace_s({}), grace_s({GRACE_ENV: "300"})) == (GRACE_S, 300)
    for wrong in ("soon", "-1", "1.5", "²"):
        with pytest.raises(UsageError, match=f"{GRACE_ENV}='{wrong}' is not a number of seconds"):
            grace_s({GRACE_ENV: wrong})
