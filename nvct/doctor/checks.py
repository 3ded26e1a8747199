# SPDX-License-Identifier: Apache-2.0
"""The checks of `nvct doctor`: each has a name, a question, and a function that answers it. Cold.

`nvct status` runs some of them (`STATUS`), and prints no remedies. A check changes nothing and
raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nvct.doctor import (
    agent_status,
    docker,
    gpu_health,
    hardware,
    image_needs,
    incumbent,
    inside,
    kubelet,
    parts,
    registered,
    security,
    user_namespaces,
)
from nvct.doctor.model import Finding, Part, unseen
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.paths import AGENT_DIR

AGENT_TASKS = ("device-plugin",)  # Tasks of the agent that pods need to get GPUs


@dataclass(frozen=True, slots=True)
class Check:
    """A check, with its yes-no question: "no" means a fault."""

    name: str
    question: str
    look: Callable[[Node], Part]


def _agent(node: Node) -> Part:
    if node.agent is None:
        if part := unseen(Reason.ResourceNotListed, AGENT_DIR):
            return part
        lines = ["no agent serves this node", *filter(None, [node.released])]
        return Part.of(*lines, health="absent")
    try:
        found = list(agent_status.findings(node.agent, AGENT_TASKS))
    except agent_status.MALFORMED:
        text = f"the answer of the agent in {AGENT_DIR} is not a /status"
        return Part.of(Finding(Reason.ResourceNotListed, "unknown", text))
    return Part.of(*found)


# fmt: off
CHECKS = (
    Check("config", "Is config.toml valid?", parts.configuration),
    Check("gpus", "Does NVIDIA's driver have the GPUs?", hardware.gpus),
    Check("module", "Is the driver's kernel module loaded?", hardware.check_kernel_module),
    Check("driver", "Is the driver complete?", parts.driver),
    Check("nvml", "Does NVML answer?", hardware.nvml),
    Check("health", "Does every GPU work?",
          lambda node: inside.of_own_gpus(gpu_health.check(node), node)),
    Check("mig", "Is every MIG mode in force?", hardware.mig),
    Check("fabric", "Is the NVLink fabric complete?", hardware.fabric),
    Check("daemon", "Are GPUs kept initialized?", hardware.persistence),
    Check("links", "Does systemd find the device nodes?", hardware.character_links),
    Check("access", "Can every user open the device nodes?", hardware.node_modes),
    Check("specs", "Do the CDI specifications describe this host?", parts.specs),
    Check("hooks", "Are the hooks of the CDI specifications safe?", parts.hooks),
    Check("versions", "Can the engines read the CDI specifications?", parts.versions_of),
    Check("plans", "Are the plans fresh?", parts.plans),
    Check("farm", "Are the views of the driver intact?", parts.farm),
    Check("engines", "Can the engines give GPUs, by a runtime or by CDI?", registered.check),
    Check("docker", "Does docker run --gpus work?", docker.check),
    Check("units", "Do systemd's units keep the specification up to date?", parts.units),
    Check("reload", "Do running containers keep their GPU?", inside.systemd_reload),
    Check("agent", "Does the agent offer the GPUs?", _agent),
    Check("kubelet", "Can pods get all GPUs, and do they have theirs?", kubelet.check),
    Check("container", "Does this container have what it asks for?", inside.check),
    Check("selinux", "Does SELinux let containers use devices?", security.selinux),
    Check("apparmor", "Does AppArmor let containers use devices?", security.apparmor),
    Check("userns", "Can users without root, and in user namespaces, use the GPUs?",
          lambda node: user_namespaces.check(node, user_namespaces.who_asks(node.env))),
    Check("inotify", "Can the kubelet and the agent watch files?", kubelet.watches),
    Check("folders", "Can only root write CDI specifications?", security.spec_folders),
    Check("toolkit", "Is every NVIDIA Container Toolkit here without known vulnerabilities?",
          incumbent.check),
    Check("management", "Are the devices that change MIG out of reach?", security.management),
    Check("image", "Does the image have what the driver needs?", image_needs.check),
    Check("images", "Do images get all GPUs only if their users ask for them?",
          security.images_ask_for_all),
)
# fmt: on
STATUS = ("config", "driver", "specs", "hooks", "plans", "farm", "engines", "docker", "units")
"""The checks that `nvct status` shows."""
SECURITY = ("hooks", "folders", "toolkit", "management", "images")
"""The checks of `nvct doctor --security`."""
OF_DRIVER = ("gpus", "module", "driver", "nvml", "health", "daemon", "specs", "kubelet")
"""Checks that find faults while the driver is being replaced; their remedies would hinder that."""


def result(check: Check, node: Node) -> Part:
    """Return a check's result; its only fault is `DriverBeingReplaced` while that is so."""
    part = check.look(node)
    why = node.released if node.agent is None else agent_status.released(node.agent)
    if why and check.name in OF_DRIVER and any(finding.is_fault for finding in part.findings):
        part = Part.of(Finding(Reason.DriverBeingReplaced, "warning", why))
    return replace(part, name=check.name)


def named(names: Sequence[str]) -> list[Check]:
    """Return the checks with these names, in the order of CHECKS."""
    return [check for check in CHECKS if check.name in names]
