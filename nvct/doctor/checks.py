# SPDX-License-Identifier: Apache-2.0
"""The checks of `nvct doctor`: a name, a question, and what looks at this host. Cold.

`nvct status` shows those of a node's parts (`STATUS`), without remedies. A check changes nothing
and raises nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from nvct.cdi.check import conflicts
from nvct.cdi.check.drift import Report
from nvct.cdi.read import registry
from nvct.cdi.read.registry import Registry
from nvct.compile import live_host
from nvct.config.model import Config
from nvct.container.plan.store import run_dir
from nvct.doctor import (
    agent_status,
    containers,
    docker,
    gpu_health,
    hardware,
    image_needs,
    incumbent,
    inotify,
    inside,
    kubelet,
    parts,
    refusals,
    registered,
    security,
    specifications,
    user_namespaces,
)
from nvct.doctor.containers import Containers
from nvct.doctor.gpu_health import Log
from nvct.doctor.model import Finding, Part, unseen
from nvct.doctor.reasons import Reason
from nvct.engine import docker_host
from nvct.engine import status as engine_status
from nvct.engine.model import Engine, Files
from nvct.engine.status import Status
from nvct.errors import DriverNotFoundError, NvctError, NvmlError
from nvct.host import procfs
from nvct.host.model import Inventory
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.sample_model import NvmlConditions, NvmlReadiness
from nvct.host.nvml.session import NvmlSession, shared_session
from nvct.host.roots import Roots
from nvct.paths import AGENT_DIR

T = TypeVar("T")

BOOTED = "/run/systemd/system"  # sd_booted(3)
AGENT_TASKS = ("device-plugin",)
"""Tasks of the agent that pods need to get GPUs."""


@dataclass
class Node:
    """This host, as the checks look at it; each part of it is read once.

    Attributes:
        released: why the driver is being replaced, "" if it is not.
        trouble: why config.toml cannot be used; the settings are then the defaults.
    """

    settings: Config
    env: Mapping[str, str]
    engines: Sequence[Engine] = ()
    agent: Mapping[str, Any] | None = None
    trouble: NvctError | None = None
    released: str = ""
    image: str = ""
    booted: bool = field(default_factory=lambda: os.path.isdir(BOOTED))

    @cached_property
    def roots(self) -> Roots:
        """Where the driver, /proc and /sys are."""
        return live_host.roots_of(self.settings)

    @cached_property
    def driver(self) -> tuple[Part, Inventory | None]:
        """What discovery finds."""
        part, inventory = parts.driver(self.settings)
        return self.of_own_gpus(part) if inventory else part, inventory

    def of_own_gpus(self, part: Part) -> Part:
        """Return a check's result; inside a container, without what only its host has."""
        is_inside = self.roots.dev == "/dev" and inside.is_container(self.env)
        return inside.without_other_gpus(part) if is_inside else part

    @cached_property
    def session(self) -> NvmlSession | None:
        """NVML of the driver's root; None if there is none."""
        try:
            return shared_session(nvml_library(self.roots))
        except DriverNotFoundError:
            return None

    @cached_property
    def nvml(self) -> tuple[Part, MigState | None]:
        """What NVML answers. If it hung for discovery, nobody waits for it again."""
        found = self.driver[0].findings if "driver" in self.__dict__ else ()
        hung = [finding for finding in found if finding.reason is Reason.NvmlHung]
        if hung:
            return Part.of(*hung[:1], findings=hung[1:]), None
        return hardware.nvml(self.session)

    @cached_property
    def readiness(self) -> NvmlReadiness | None:
        """What NVML reports of persistence mode and NVLink fabric; None if it does not answer."""
        return self.ask("readiness", NvmlReadiness)

    def ask(self, verb: str, kind: type[T]) -> T | None:
        """Return NVML's answer; None if it does not answer, as the check of NVML says."""
        if self.session is None or self.nvml[1] is None:
            return None
        try:
            return self.session.ask(verb, kind)
        except NvmlError:
            return None

    @cached_property
    def log(self) -> Log:
        """The kernel's messages."""
        return gpu_health.kernel_log(self.env)

    @cached_property
    def statuses(self) -> list[Status]:
        """The configuration and state of the engines."""
        return [engine_status.of(engine, Files()) for engine in self.engines]

    @cached_property
    def containers(self) -> Containers:
        """The containers of this host, by their processes."""
        containers = Containers()
        containers.refresh()
        return containers

    @cached_property
    def report(self) -> Report:
        """The differences between the CDI specifications and this host."""
        return specifications.compare(self.settings, self.driver[1])

    @cached_property
    def registry(self) -> Registry:
        """The CDI specifications."""
        return registry.scan(self.settings.spec_dirs)


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        question: a sentence; "no" means that something is wrong.
    """

    name: str
    question: str
    look: Callable[[Node], Part]


def _config(node: Node) -> Part:
    if node.trouble is not None:
        return refusals.refused(node.trouble)
    others = [
        status.engine.engine
        for status in (node.statuses if node.settings.policy else ())
        if not (status.engine.foreign or status.is_default)
    ]
    has_engine = any(not engine.foreign for engine in node.engines)
    path = node.env.get("PATH", "") if has_engine else None
    return parts.configuration(node.settings, others, path)


def _health(node: Node) -> Part:
    reported = node.ask("conditions", NvmlConditions)
    return node.of_own_gpus(gpu_health.check(node.roots, node.nvml[1], reported, node.log))


def _daemon(node: Node) -> Part:
    readiness, session = node.readiness, node.session
    return hardware.persistence(node.roots, readiness, session.first_answer_s if session else None)


def _hooks(node: Node) -> Part:
    programs = incumbent.hook_programs(conflicts.in_force(node.registry))
    return parts.hooks(node.report, list(programs))


def _userns(node: Node) -> Part:
    return user_namespaces.check(
        node.roots,
        user_namespaces.who_asks(node.env),
        uses_podman=any(engine.engine == "podman" for engine in node.engines),
        name_of=node.containers.name_of_process,
    )


def _kubelet(node: Node) -> Part:
    state, inventory = node.nvml[1], node.driver[1]
    gpus = len(state.gpus) if state else 0
    return kubelet.check(node.roots.proc, gpus, node.statuses, inventory=inventory)


def _images(node: Node) -> Part:
    is_default = any(status.is_default for status in node.statuses)
    return security.images_ask_for_all(node.settings, is_default=is_default)


def _engines(node: Node) -> Part:
    inventory = node.driver[1]
    return registered.check(
        node.statuses,
        node.registry,
        has_gpu=inventory is not None and bool(inventory.gpus or inventory.devices),
        serves_pods=lambda: bool(kubelet.processes(node.roots.proc)),
        no_cgroups=node.settings.cli_no_cgroups,
        hidden=procfs.hidden_processes(node.roots.proc),
    )


def _docker(node: Node) -> Part:
    if not any(engine.engine == "docker" and not engine.foreign for engine in node.engines):
        return Part.absent("no dockerd runs here")
    host = docker_host.look(Files(), node.roots, node.env)
    found = [one for one in docker.why_docker_cannot(host) if one.severity != "ok"]
    cause = docker.the_cause(found)
    if cause is None:
        if hidden := [one for one in found if one.reason is Reason.EngineNotRunning]:
            return Part.absent(hidden[0])
        unknown = any(finding.severity == "unknown" for finding in found)
        seen = " that can be seen" if unknown else ""
        return Part.of(f"nothing is in the way of docker run --gpus{seen}", findings=found)
    if cause.reason is Reason.GpuNotFound:  # as the check of the GPUs says
        return Part.absent(cause.evidence)
    return Part.of(f"{docker.command_of(cause)} fails: {cause.evidence}", findings=[cause])


def _agent(node: Node) -> Part:
    if node.agent is None:
        if part := unseen(Reason.ResourceNotListed, AGENT_DIR):
            return part
        lines = ["no agent serves this node", *filter(None, [node.released])]
        return Part.of(*lines, health="absent")
    try:
        found = list(agent_status.findings(node.agent, AGENT_TASKS))
    except agent_status.MALFORMED:
        text = f"what answers in {AGENT_DIR} gives no /status of an agent"
        return Part.of(Finding(Reason.ResourceNotListed, "unknown", text))
    return Part.of(*found)


# fmt: off
CHECKS = (
    Check("config", "Is config.toml valid?", _config),
    Check("gpus", "Has NVIDIA's driver the GPUs?", lambda node: hardware.gpus(node.roots)),
    Check("module", "Is the driver's kernel module loaded?",
          lambda node: hardware.check_kernel_module(node.roots, node.log)),
    Check("driver", "Is the driver complete?", lambda node: node.driver[0]),
    Check("nvml", "Does NVML answer?", lambda node: node.nvml[0]),
    Check("health", "Does every GPU work?", _health),
    Check("mig", "Is every MIG mode in force?", lambda node: hardware.mig(node.nvml[1])),
    Check("fabric", "Is the NVLink fabric complete?",
          lambda node: hardware.fabric(node.roots, node.readiness)),
    Check("daemon", "Are GPUs kept initialized?", _daemon),
    Check("links", "Does systemd find the device nodes?",
          lambda node: hardware.character_links(node.roots, booted=node.booted)),
    Check("access", "Can every user open the device nodes?",
          lambda node: hardware.node_modes(node.roots)),
    Check("specs", "Do the CDI specifications describe this host?",
          lambda node: parts.specs(node.settings, node.report)),
    Check("hooks", "Are the hooks of the CDI specifications safe?", _hooks),
    Check("versions", "Can the engines read the CDI specifications?",
          lambda node: parts.versions_of(node.statuses, node.registry, node.settings.spec_dirs)),
    Check("plans", "Are the plans fresh?", lambda node: parts.plans(run_dir(node.env))),
    Check("farm", "Are the views of the driver whole?",
          lambda node: parts.farm(node.settings, run_dir(node.env))),
    Check("engines", "Can the engines give GPUs, by a runtime or by CDI?", _engines),
    Check("docker", "Does docker run --gpus work?", _docker),
    Check("units", "Do systemd's units keep the specification?",
          lambda node: parts.units(booted=node.booted)),
    Check("reload", "Do running containers keep their GPU?",
          lambda node: containers.systemd_reload(node.roots, node.containers)),
    Check("agent", "Does the agent offer the GPUs?", _agent),
    Check("kubelet", "Can pods have all GPUs, and have they theirs?", _kubelet),
    Check("container", "Has this container what it asks for?",
          lambda node: inside.check(node.env)),
    Check("selinux", "Does SELinux let containers use devices?",
          lambda node: security.selinux(node.roots, node.log)),
    Check("apparmor", "Does AppArmor let containers use devices?",
          lambda node: security.apparmor(node.roots, node.log)),
    Check("userns", "Can users without root, and in user namespaces, use the GPUs?", _userns),
    Check("inotify", "Can the kubelet and the agent watch files?",
          lambda node: inotify.check(node.roots.proc)),
    Check("folders", "Can only root write CDI specifications?",
          lambda node: security.spec_folders(node.settings.spec_dirs)),
    Check("toolkit", "Is no vulnerable NVIDIA Container Toolkit here?",
          lambda _: incumbent.check()),
    Check("management", "Are the devices that change MIG out of reach?",
          lambda node: security.management(node.roots, node.registry.specs)),
    Check("image", "Has the image what the driver needs?",
          lambda node: image_needs.check(node.image, node.driver[1])),
    Check("images", "Does no image get all GPUs by itself?", _images),
)
# fmt: on
STATUS = ("config", "driver", "specs", "hooks", "plans", "farm", "engines", "docker", "units")
"""The checks that `nvct status` shows."""
SECURITY = ("hooks", "folders", "toolkit", "management", "images")
"""The checks of `nvct doctor --security`."""
OF_DRIVER = ("gpus", "module", "driver", "nvml", "health", "daemon", "specs", "kubelet")
"""Checks that find faults while the driver is being replaced: their remedies are in its way."""


def result(check: Check, node: Node) -> Part:
    """Return the result of a check; while the driver is being replaced, that is its only fault."""
    part = check.look(node)
    why = node.released if node.agent is None else agent_status.released(node.agent)
    if why and check.name in OF_DRIVER and any(finding.is_fault for finding in part.findings):
        part = Part.of(Finding(Reason.DriverBeingReplaced, "warning", why))
    return replace(part, name=check.name)


def named(names: Sequence[str]) -> list[Check]:
    """Return the checks with some names, in their order in the table."""
    return [check for check in CHECKS if check.name in names]
