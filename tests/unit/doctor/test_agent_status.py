# SPDX-License-Identifier: Apache-2.0
"""What the agent's /status says about the GPUs of its node."""

from typing import Any

import pytest

from nvct.agent.health import notices
from nvct.agent.health.machine import Health
from nvct.agent.nvml.worker_client import NvmlWorkerClient
from nvct.config.model import Config
from nvct.doctor import agent_status, checks
from nvct.doctor.model import Finding, Part
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.host.faults import REMEDIES, Action

PLUGIN = "device-plugin"
PREFLIGHT = {
    "GPU-0": {},
    "GPU-1": {
        name: {"effect": effect, "text": name}
        for name, effect in (("a", "warn"), ("b", "withhold"), ("c", "warn"))
    },
}
GPU = "nvidia.com/gpu"


def resource(state: str = "listed", devices: int = 8, **more: Any) -> dict[str, Any]:
    return {"resource": GPU, "state": state, "reason": "", "devices": devices, "unhealthy": {},
            **more}  # fmt: skip


def document(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return /status as `nvct.agent.core.status` makes it."""
    task = {"name": PLUGIN, "state": "running", "reason": "", "restarts": 0}
    tasks = [{**task, "detail": list(resources)}]
    return {"state": "serving", "nvml": {"state": "answers", "reason": ""}, "tasks": tasks, **more}


def findings(status: dict[str, Any]) -> list[Finding]:
    return list(agent_status.findings(status, [PLUGIN]))


@pytest.mark.parametrize(
    "status",
    [{}, {"state": []}, document({}), document(tasks=7), document(nvml="x"),
     document(resource(unhealthy=["a"])), document({**resource(), "devices": "8"}, resource()),
     document(resource(), health=7)],
)  # fmt: skip
def test_an_answer_of_another_form_is_one_of_few_errors(status: dict[str, Any]) -> None:
    with pytest.raises(agent_status.MALFORMED):
        findings(status)


def test_such_an_answer_is_told_as_what_it_is() -> None:
    node = Node(settings=Config(), env={}, agent={"state": "serving", "tasks": "\x1b[2J"})
    part = next(check for check in checks.CHECKS if check.name == "agent").look(node)
    assert part.lines == ("the answer of the agent in /run/nvct-agent is not a /status",)


def failed(name: str) -> dict[str, Any]:
    return {"name": name, "state": "failed", "reason": "no libcuda", "restarts": 2, "detail": None}


def test_an_end_of_nvmls_worker_does_not_blame_the_driver() -> None:
    error = NvmlWorkerClient("/run/x.sock")._failure("no answer")
    (finding,) = findings(document(resource(), nvml={"state": "fails", "reason": error.message}))
    assert finding.reason == Reason.AgentTaskFailed
    assert "container nvml-worker" in finding.evidence
    assert "nvidia-smi" not in finding.to_dict()["remedy"]


@pytest.mark.parametrize("action", ["reset", "reboot", "replace"])
def test_an_unhealthy_device_has_one_remedy(action: Action) -> None:
    why = notices.sentence(
        Health(state="unhealthy", action=action, reason="XID 79 (GPU has fallen off the bus)")
    )
    (finding,) = findings(document(resource(unhealthy={"GPU-0": why})))
    assert finding.evidence.endswith("GPU-0: XID 79 (GPU has fallen off the bus)")
    remedy = finding.to_dict()["remedy"]
    assert f"{remedy[0].lower()}{remedy[1:-1]}" == REMEDIES[action]


FIRST_FAULTS: list[tuple[dict[str, Any], Reason, str, str]] = [
    (document(state="waiting"), Reason.GpuNotFound, "note", "this node has no NVIDIA GPU"),
    (
        document(tasks=[failed(PLUGIN)]), Reason.AgentTaskFailed, "error",
        "task device-plugin has failed: no libcuda",
    ),
    (
        document(resource(), nvml={"state": "fails", "reason": "nvmlInit: driver/library"}),
        Reason.DriverNotWorking, "error", "nvmlInit: driver/library",
    ),
    *(
        (
            document(
                resource(unhealthy={"a": "x"}), nvml={"state": state, "reason": "is replaced"}
            ),
            Reason.DriverBeingReplaced, "error", "is replaced",
        )
        for state in ("released", "closing")
    ),
    (  # the driver is loaded, and the devices are looked at
        document(resource(devices=1, unhealthy={"a": "the driver is being replaced: x"})),
        Reason.DriverBeingReplaced, "error", "the driver is being replaced: x",
    ),
    (
        document(resource("lost", reason="the kubelet was restarted")),
        Reason.ResourceNotListed, "error", f"{GPU} is lost: the kubelet was restarted",
    ),
    (document(resource("serving")), Reason.ResourceNotListed, "error", f"{GPU} is serving"),
    (document(), Reason.ResourceNotListed, "error", "the kubelet is offered no device"),
    (
        document(resource(devices=2, unhealthy={"b": "XID 79", "a": "XID 48"})),
        Reason.DeviceUnhealthy, "error", "unhealthy devices: 2 of 2; a: XID 48",
    ),
    (
        document(resource(devices=1, unhealthy={"a": "is changed"}, withheld=["a"])),
        Reason.DeviceWithheld, "error", "devices withheld for a time: 1 of 1; a: is changed",
    ),
    (
        document(resource(unhealthy={"a": "is changed", "b": "XID 79"}, withheld=["a"])),
        Reason.DeviceUnhealthy, "warning", "unhealthy devices: 2 of 8; b: XID 79",
    ),
    (
        document(resource(), health={"preflight": PREFLIGHT}),
        Reason.PreflightWarns, "warning", "GPU-1: a, c",
    ),
    (
        document(resource(unhealthy={"GPU-1": "b"}), health={"preflight": PREFLIGHT}),
        Reason.DeviceUnhealthy, "warning", "unhealthy devices: 1 of 8; GPU-1: b",
    ),
    (document(resource(), health=None), Reason.ResourceNotListed, "ok",
     f"the kubelet is offered 8 of {GPU}"),
    (
        document(resource(unhealthy={"b": "XID 79"})),
        Reason.DeviceUnhealthy, "warning", "unhealthy devices: 1 of 8; b: XID 79",
    ),
    (
        document(resource(), {**resource(devices=7), "resource": "nvidia.com/mig-1g.10gb"}),
        Reason.ResourceNotListed, "ok",
        f"the kubelet is offered 8 of {GPU}, 7 of nvidia.com/mig-1g.10gb",
    ),
    (
        document(resource(), resource("withdrawn", devices=0)),
        Reason.ResourceNotListed, "ok", f"the kubelet is offered 8 of {GPU}",
    ),
    (
        document(nvml={"state": "fails", "reason": "NVML does not answer within 5 s: /usr/lib/x"}),
        Reason.NvmlHung, "error", "NVML does not answer within 5 s: /usr/lib/x",
    ),
    (
        document(resource("refused", reason="process 7 serves x.sock")),
        Reason.DevicePluginNotAlone, "error", f"{GPU} is refused: process 7 serves x.sock",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("status", "reason", "severity", "evidence"), FIRST_FAULTS)
def test_the_first_fault_is_named(
    status: dict[str, Any], reason: Reason, severity: str, evidence: str
) -> None:
    (found,) = findings(status)
    assert (found.reason, found.severity, found.evidence) == (reason, severity, evidence)


def test_a_task_that_pods_do_not_need_does_not_count() -> None:
    status = document(resource())
    status["tasks"].append(failed("labels"))
    assert [found.severity for found in findings(status)] == ["ok"]


REPLACED = document(nvml={"state": "released", "reason": "label x says so"})


@pytest.mark.parametrize(
    ("name", "agent", "reason"),
    [
        ("module", REPLACED, Reason.DriverBeingReplaced),
        ("module", document(), Reason.DriverNotLoaded),
        ("module", None, Reason.DriverNotLoaded),
        ("module", {"nvml": 7}, Reason.DriverNotLoaded),
        ("hooks", REPLACED, Reason.DriverNotLoaded),
    ],
)
def test_no_remedy_is_in_the_way_of_a_driver_that_is_being_replaced(
    name: str, agent: dict[str, Any] | None, reason: Reason
) -> None:
    fault = Finding(Reason.DriverNotLoaded, "error", "nothing is loaded")
    check = checks.Check(name, "?", lambda _: Part.of("x", findings=[fault]))
    part = checks.result(check, Node(settings=Config(), env={}, agent=agent))
    assert [found.reason for found in part.findings] == [reason]
    assert part.health == "attention"
    is_other = reason is Reason.DriverBeingReplaced
    assert part.lines == (("label x says so",) if is_other else ("x",))


def test_a_release_that_no_agent_has_obeyed_yet_is_shown() -> None:
    fault = Finding(Reason.DriverNotLoaded, "error", "nothing is loaded")
    check = checks.Check("module", "?", lambda _: Part.of("x", findings=[fault]))
    node = Node(settings=Config(), env={}, released="the command says so")
    assert checks.result(check, node).lines == ("the command says so",)
    (agent,) = checks.named(["agent"])
    assert agent.look(node).lines == ("no agent serves this node", "the command says so")


def test_a_check_without_a_fault_stays_as_it_is() -> None:
    check = checks.Check("module", "?", lambda _: Part.of("x"))
    part = checks.result(check, Node(settings=Config(), env={}, agent=REPLACED))
    assert part.lines == ("x",)
