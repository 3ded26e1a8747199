# SPDX-License-Identifier: Apache-2.0
"""For every reason of the catalogue, a host that has it, and the check that finds it."""

from __future__ import annotations

import json
import os
import shutil

from nvct.config import load
from nvct.container.plan.store import Store
from nvct.doctor import (
    agent_status,
    docker,
    driver,
    hardware,
    image_needs,
    parts,
    security,
    specifications,
)
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine.command import Completed
from nvct.host.model import Inventory
from nvct.host.nvml.mig_model import MigGpu, MigState
from tests.support import explained as request
from tests.support.explained import VISIBLE, explained
from tests.support.host_tree import LIB
from tests.unit.doctor import broken_nodes, test_hook_programs
from tests.unit.doctor import statuses as engine_statuses
from tests.unit.doctor import unread_files as unread_engine_files
from tests.unit.engine.docker_lab import CDI_HOOK, HOUR, RUNTIME_HOOK, DockerLab

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from nvct.config.model import Config
    from nvct.doctor.model import Finding, Part
    from tests.support.shim_lab import Lab
    from tests.unit.doctor.broken_nodes import Builder

    Findings: TypeAlias = list[dict[str, str]]
    Case: TypeAlias = Callable[[Lab], Findings]


def shown(*findings: Finding) -> Findings:
    return [finding.to_dict() for finding in findings]


def settings(lab: Lab) -> Config:
    return load.load(str(lab.config_toml))


def node(lab: Lab) -> Findings:
    """Return what the checks of the node's parts find, apart from engines and units."""
    host = node_of(lab)
    checked = (
        parts.configuration, parts.driver, parts.specs, parts.hooks, parts.plans, parts.farm,
    )  # fmt: skip
    return shown(*(finding for check in checked for finding in check(host).findings))


def node_of(lab: Lab, **given: object) -> Node:
    """Return a lab as the checks look at it."""
    host = Node(settings=settings(lab), env=lab.env)
    vars(host).update(given)
    return host


def drifted(lab: Lab) -> Findings:
    inventory, _ = specifications.look(settings(lab), required=False)
    return shown(*specifications.findings(specifications.compare(settings(lab), inventory)))


def asked(prepare: Callable[[Lab], None]) -> Case:
    def check(lab: Lab) -> Findings:
        prepare(lab)
        found: Findings = explained(lab)["findings"]
        return found

    return check


# The GPU and its driver.


def no_gpu(lab: Lab) -> Findings:
    return in_docker(DockerLab(lab.home / "d").program("/usr/bin/docker").dockerd())


def no_module(lab: Lab) -> Findings:
    lab.driver(gpus=1)
    lab.spec(devices={"0": mount("/usr/lib/libcuda.so.550.54.14")})
    shutil.rmtree(lab.home / "proc/driver")
    shutil.rmtree(lab.home / "driver")
    return drifted(lab)


def no_libraries(lab: Lab) -> Findings:
    lab.driver()
    shutil.rmtree(lab.home / "driver/usr")
    return node(lab)


def driver_root(lab: Lab, *, status: int = 0, ready: str = "") -> Findings:
    """Check the driver of a driver container, beside a host without one."""
    here = lab.home / "driver-root"
    (here / "usr/bin").mkdir(parents=True)
    (here / "usr/bin/nvidia-smi").touch()
    (lab.home / "host").mkdir()
    places = driver.Places(host_here=str(lab.home / "host"), driver_here=str(here))
    said = Completed(status=status, out="Driver/library version mismatch")
    found = driver.find(places, ready, lambda _root: lambda *_args: said)
    return [] if isinstance(found, driver.Driver) else shown(found)


def nvidia_smi_fails(lab: Lab) -> Findings:
    return driver_root(lab, status=18)


def no_marker(lab: Lab) -> Findings:
    return driver_root(lab, ready=str(lab.home / ".driver-ctr-ready"))


def no_module_of_a_driver_container(lab: Lab) -> Findings:
    marker = lab.home / ".driver-ctr-ready"
    marker.write_text("GDRCOPY_ENABLED: true\n", encoding="utf-8")
    return shown(*driver.components(str(marker), str(lab.home / "sys")).values())


def no_libcuda(lab: Lab) -> Findings:
    for path in (lab.driver().driver / LIB).glob("libcuda.so*"):
        path.unlink()
    return node(lab)


def hardware_of(check: Callable[[Node], Part]) -> Case:
    """Return a case of a check that looks at the host's roots."""

    def look(lab: Lab) -> Findings:
        looked_at = broken_nodes.node_of(lab.home, roots=lab.host.roots, booted=True)
        return shown(*check(looked_at).findings)

    return look


def nouveau(lab: Lab) -> Findings:
    bus_id = "0000:18:00.0"
    lab.host.write(f"sys/bus/pci/devices/{bus_id}/vendor", "0x10de\n")
    lab.host.write(f"sys/bus/pci/devices/{bus_id}/class", "0x030200\n")
    lab.host.write(f"sys/bus/pci/drivers/nouveau/{bus_id}")
    return hardware_of(hardware.gpus)(lab)


def mig_waits_for_a_reset(lab: Lab) -> Findings:
    gpu = MigGpu(
        bus_id="0000:18:00.0", minor=0, device=0, subsystem=0, capable=True, index=0,
        pending=True, uuid="GPU-1", name="A100",
    )  # fmt: skip
    return shown(*hardware.mig(node_of(lab, nvml=MigState(gpus=(gpu,)))).findings)


def no_character_links(lab: Lab) -> Findings:
    lab.driver(gpus=1)
    (lab.home / "dev/char").mkdir()
    (lab.home / "dev/nvidia0").unlink()
    os.symlink("/dev/null", lab.home / "dev/nvidia0")
    return hardware_of(hardware.character_links)(lab)


def nodes_of_a_group(lab: Lab) -> Findings:
    lab.driver(gpus=1)
    node = lab.home / "dev/nvidiactl"
    node.unlink()
    node.write_text("", encoding="utf-8")
    node.chmod(0o660)
    return hardware_of(hardware.node_modes)(lab)


def selinux_denies(lab: Lab) -> Findings:
    lab.host.write("sys/fs/selinux/enforce", "1")
    lab.host.write("sys/fs/selinux/booleans/container_use_devices", "0 0")
    return hardware_of(security.selinux)(lab)


def writable_folder(lab: Lab) -> Findings:
    folder = lab.home / "cdi"
    folder.chmod(0o1777)
    looked_at = broken_nodes.with_specs(lab.home, folder)
    return shown(*security.spec_folders(looked_at, owner=os.geteuid()).findings)


def no_device_node(lab: Lab) -> Findings:
    lab.driver(gpus=1)
    (lab.home / "dev/nvidia0").unlink()
    return node(lab)


def nvidia_smi_is_nowhere(lab: Lab) -> Findings:
    found = driver.in_this_container({"PATH": str(lab.home)})
    return shown(found) if found else []


# CDI specifications.


def mount(path: str) -> dict[str, object]:
    return {"mounts": [{"hostPath": path, "containerPath": path}]}


def hook(path: str, **more: object) -> dict[str, object]:
    return {"hooks": [{"hookName": "createContainer", "path": path, **more}]}


def no_spec(lab: Lab) -> Findings:
    return node(lab)


def damaged_spec(lab: Lab) -> Findings:
    (lab.home / "cdi/x.json").write_text("{", encoding="utf-8")
    return drifted(lab)


def two_specs(lab: Lab) -> Findings:
    lab.spec("a.json")
    lab.spec("b.json")
    return drifted(lab)


def shadowed_spec(lab: Lab) -> Findings:
    lab.spec(folder="cdi")
    lab.spec(folder="cdi2")
    return drifted(lab)


def stale_spec(lab: Lab) -> Findings:
    lab.spec(kind="acme.com/nic", devices={"0": mount("/no/such/file")})
    return drifted(lab)


def incomplete_spec(lab: Lab) -> Findings:
    lab.driver(gpus=1)
    lab.spec(kind="acme.com/nic")
    return drifted(lab)


def no_hook(lab: Lab) -> Findings:
    lab.spec(kind="acme.com/nic", devices={"0": hook("/no/such/hook", env=["A=1"])})
    return drifted(lab)


def hook_without_env(lab: Lab) -> Findings:
    lab.spec(kind="acme.com/nic", devices={"0": hook(str(lab.hook))})
    return drifted(lab)


def hook_of_another_release(lab: Lab) -> Findings:
    return shown(*test_hook_programs.findings(lab.home, "X version 1.20.0\nnvct: 0.0.7"))


# What nvct compiles and keeps.


def replaced_value(lab: Lab) -> Findings:
    lab.configure(**{"log-level": "loud"})
    return node(lab)


def idle_key(lab: Lab) -> Findings:
    lab.keys["nvidia-container-cli"]["debug"] = "/var/log/x"
    lab.configure()
    return node(lab)


def unchecked_policy(lab: Lab) -> Findings:
    lab.keys["nvct.policy"] = {"default": "deny"}
    lab.configure()
    return node(lab)


def damaged_plan(lab: Lab) -> Findings:
    Store(str(lab.run_dir)).write("own.plan", b"{}")
    return node(lab)


def damaged_view(lab: Lab) -> Findings:
    request.farm_of(lab)
    lab.create()
    library = next((lab.home / "driver").rglob("libcuda.so.5*"))
    library.write_bytes(b"another")
    return node(lab)


def unit(lab: Lab, active: str, more: str = "") -> Findings:
    program = lab.home / "bin/systemctl"
    said = f"LoadState=loaded\\nActiveState={active}\\nUnitFileState=enabled\\n{more}"
    program.write_text(f"#!/bin/sh\nprintf '{said}\\n'\n", encoding="utf-8")
    program.chmod(0o755)
    return shown(*parts.units(node_of(lab, booted=True), str(program)).findings)


def replaced_unit(lab: Lab) -> Findings:
    """NVIDIA's packages of 2025-05 to 2026-05 have the unit as a configuration file in /etc."""
    words = "/usr/bin/nvidia-ctk cdi generate"
    started = f"{{ path=/usr/bin/nvidia-ctk ; argv[]={words} ; ignore_errors=no ; pid=0 }}"
    path = "/etc/systemd/system/nvidia-cdi-refresh.service"
    return unit(lab, "active", f"FragmentPath={path}\\nExecStart={started}")


def failed_unit(lab: Lab) -> Findings:
    return unit(lab, "failed")


def idle_unit(lab: Lab) -> Findings:
    return unit(lab, "inactive")


# Container engines.


def engine(**more: object) -> Case:
    found = engine_statuses.status(
        engine_statuses.engine(),
        cdi=False,
        **more,  # type: ignore[arg-type]  # of the test
    )
    return lambda _lab: shown(*engine_statuses.check(found).findings)


def no_cgroups(lab: Lab) -> Findings:
    hook = lab.home / "bin" / RUNTIME_HOOK
    hook.parent.mkdir(exist_ok=True)
    hook.touch()
    hook.chmod(0o755)
    found = engine_statuses.status(engine_statuses.engine(path=str(hook.parent)), cdi=False)
    return shown(*engine_statuses.check(found, no_cgroups=True).findings)


def image_without_libc(lab: Lab) -> Findings:
    (lab.home / "image").mkdir()
    looked_at = broken_nodes.node_of(
        lab.home, image=str(lab.home / "image"), discovery=Inventory(driver_version="1")
    )
    return shown(*image_needs.check(looked_at).findings)


def unread_file(lab: Lab) -> Findings:
    found = unread_engine_files.findings(lab.home, "crio")
    return shown(*found)


def in_docker(lab: DockerLab) -> Findings:
    return shown(*(found for found in docker.why_docker_cannot(lab.look()) if found.is_fault))


def with_docker(lab: Lab, hook: str = RUNTIME_HOOK, version: str = "26.1.5") -> DockerLab:
    made = DockerLab(lab.home / "d", version=version).gpu().program("/usr/bin/docker")
    return made.program(f"/usr/bin/{hook}") if hook else made


def no_daemon(lab: Lab) -> Findings:
    return in_docker(with_docker(lab))


def late_hook(lab: Lab) -> Findings:
    return in_docker(with_docker(lab).dockerd(age=HOUR))


def cdi_off(lab: Lab) -> Findings:
    made = with_docker(lab, CDI_HOOK, version="29.2.0").spec()
    made.tree.write("etc/docker/daemon.json", json.dumps({"features": {"cdi": False}}))
    return in_docker(made.dockerd())


def no_hook_installed(lab: Lab) -> Findings:
    return in_docker(with_docker(lab, "").dockerd())


def hook_elsewhere(lab: Lab) -> Findings:
    return in_docker(with_docker(lab).dockerd(env={"PATH": "/opt/docker/bin"}))


def snap(lab: Lab) -> Findings:
    folder = "/snap/docker/2963/bin"
    env = {"PATH": folder, "SNAP_NAME": "docker"}
    (lab.home / "core22").mkdir()
    made = with_docker(lab)
    return in_docker(made.dockerd(exe=f"{folder}/dockerd", root=lab.home / "core22", env=env))


def rootless(lab: Lab) -> Findings:
    made = with_docker(lab)
    made.environ["DOCKER_HOST"] = "unix:///run/user/1000/docker.sock"
    env = {"PATH": "/home/me/bin", "HOME": "/home/me", "XDG_RUNTIME_DIR": "/run/user/1000"}
    return in_docker(made.dockerd(uid=1000, env=env))


def podman(lab: Lab) -> Findings:
    made = DockerLab(lab.home / "d").gpu().dockerd().program("/usr/bin/podman")
    made.tree.link("usr/bin/docker", "podman")
    return in_docker(made)


def desktop(lab: Lab) -> Findings:
    socket = "unix:///root/.docker/desktop/docker.sock"
    return in_docker(with_docker(lab).dockerd().context("desktop-linux", socket))


def other_host(lab: Lab) -> Findings:
    made = with_docker(lab).dockerd()
    made.environ["DOCKER_HOST"] = "ssh://me@gpu1"
    return in_docker(made)


# A container's request.


def of_node(build: Builder) -> Case:
    """Return a case of a builder of `broken_nodes`."""
    return lambda lab: shown(*build(lab.home / "node", True).findings)  # noqa: FBT003 - broken


def unprivileged(lab: Lab) -> None:
    lab.driver()
    key = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    lab.configure(key + lab.config_toml.read_text(encoding="utf-8"))
    lab.asks(VISIBLE + "0")


def no_storage(lab: Lab) -> None:
    lab.driver()
    lab.asks(VISIBLE + "all", "NVIDIA_GDS=enabled")


def agent(**more: object) -> Case:
    """Return a case of an agent whose /status differs from a healthy one's by some fields."""
    resource = {"resource": "nvidia.com/gpu", "state": "listed", "reason": "", "devices": 1}
    task = {"name": "device-plugin", "state": "running", "reason": ""}
    changed = {key: more.get(key, value) for key, value in task.items()}
    detail = [{"unhealthy": {}, **resource, **more}]
    status = {
        "state": "serving", "nvml": {"state": "answers"}, "tasks": [{**changed, "detail": detail}],
        **{key: more[key] for key in more if key in ("nvml", "health")},
    }  # fmt: skip
    return lambda _: shown(*agent_status.findings(status, ["device-plugin"]))


CASES: dict[Reason, Case] = {
    Reason.GpuNotFound: no_gpu,
    Reason.DriverNotLoaded: no_module,
    Reason.DriverNotFound: no_libraries,
    Reason.DriverNotWorking: nvidia_smi_fails,
    Reason.DriverIncomplete: no_libcuda,
    Reason.DriverContainerNotReady: no_marker,
    Reason.ModuleNotLoaded: no_module_of_a_driver_container,
    Reason.GpuBoundElsewhere: nouveau,
    Reason.MigModePending: mig_waits_for_a_reset,
    Reason.FabricManagerNotRunning: of_node(broken_nodes.switches_without_a_manager),
    Reason.FabricManagerOtherRelease: of_node(broken_nodes.a_manager_of_another_release),
    Reason.FabricNotReady: of_node(broken_nodes.a_gpu_that_waits_for_the_fabric),
    Reason.PersistenceOff: of_node(broken_nodes.gpus_that_are_started_by_each_user),
    Reason.CharacterLinksMissing: no_character_links,
    Reason.DeviceNodesRestricted: nodes_of_a_group,
    Reason.SelinuxDenies: selinux_denies,
    Reason.AppArmorDenies: of_node(broken_nodes.a_node_that_apparmor_denies),
    Reason.UserNamespaceDenies: of_node(broken_nodes.a_container_whose_user_may_not_open_its_gpu),
    Reason.SubordinateIdsMissing: of_node(broken_nodes.a_user_without_subordinate_ids),
    Reason.CgroupRulesOff: no_cgroups,
    Reason.InotifyExhausted: of_node(broken_nodes.inotify_that_is_used_up),
    Reason.SpecificationFolderWritable: writable_folder,
    Reason.DeviceNodesMissing: no_device_node,
    Reason.AgentTaskFailed: agent(state="failed", reason="there is no driver"),
    Reason.ResourceNotListed: agent(state="lost", reason="the kubelet was restarted"),
    Reason.NvmlHung: agent(
        nvml={"state": "fails", "reason": "NVML does not answer within 5 s: /usr/lib/x"}
    ),
    Reason.DevicePluginNotAlone: agent(state="refused", reason="process 7 serves x.sock"),
    Reason.DeviceUnhealthy: agent(unhealthy={"GPU-1": "XID 79"}),
    Reason.DeviceWithheld: agent(unhealthy={"GPU-1": "on probation"}, withheld=["GPU-1"]),
    Reason.PreflightWarns: agent(
        health={"preflight": {"GPU-1": {"persistence": {"effect": "warn", "text": "it is off"}}}}
    ),
    Reason.DriverBeingReplaced: agent(
        nvml={"state": "released", "reason": "the driver is being replaced: none is loaded yet"}
    ),
    Reason.KubeletNotRunning: of_node(broken_nodes.a_kubelet_that_has_ended),
    Reason.PodDevicesDiffer: of_node(broken_nodes.a_pod_without_its_gpu),
    Reason.PodsWaitInInit: of_node(broken_nodes.pods_in_init),
    Reason.GpuLostAtReload: of_node(broken_nodes.a_scope_without_the_gpu),
    Reason.SpecificationTooNew: of_node(broken_nodes.an_old_engine),
    Reason.ToolkitVulnerable: of_node(broken_nodes.an_old_toolkit),
    Reason.ManagementWithinReach: of_node(broken_nodes.an_open_capability),
    Reason.ImagesAskForAll: of_node(broken_nodes.an_image_that_asks_for_all),
    Reason.SpecificationMissing: no_spec,
    Reason.SpecificationUnreadable: damaged_spec,
    Reason.SpecificationConflict: two_specs,
    Reason.SpecificationShadowed: shadowed_spec,
    Reason.SpecificationStale: stale_spec,
    Reason.SpecificationIncomplete: incomplete_spec,
    Reason.HookMissing: no_hook,
    Reason.HookOtherRelease: hook_of_another_release,
    Reason.HookWithoutEnvironment: hook_without_env,
    Reason.ConfigurationInvalid: replaced_value,
    Reason.ConfigurationKeyIgnored: idle_key,
    Reason.EngineDevicesUnchecked: unchecked_policy,
    Reason.PlanStale: damaged_plan,
    Reason.DriverViewDamaged: damaged_view,
    Reason.RefreshUnitFailed: failed_unit,
    Reason.RefreshUnitInactive: idle_unit,
    Reason.RefreshUnitReplaced: replaced_unit,
    Reason.EngineNotConfigured: engine(),
    Reason.EngineFileUnread: unread_file,
    Reason.EngineConfigurationInvalid: engine(problem="/etc/docker/daemon.json is no JSON"),
    Reason.EngineNotReloaded: engine(differences=("the runtime nvidia is not in force",)),
    Reason.RuntimeProgramMissing: engine(runtimes=("nvidia",), missing=("nvidia",)),
    Reason.EngineNotRunning: no_daemon,
    Reason.EngineNotRestarted: late_hook,
    Reason.EngineCdiDisabled: cdi_off,
    Reason.HookNotInstalled: no_hook_installed,
    Reason.HookNotOnPath: hook_elsewhere,
    Reason.SnapWithoutHook: snap,
    Reason.RootlessWithoutHook: rootless,
    Reason.ClientIsPodman: podman,
    Reason.ClientUsesDesktop: desktop,
    Reason.ClientUsesOtherHost: other_host,
    Reason.GpuNotRequested: asked(request.nothing),
    Reason.RequestIgnored: asked(unprivileged),
    Reason.RequestMalformed: asked(request.typo),
    Reason.DeviceUnknown: asked(request.unknown),
    Reason.RequestNotPermitted: asked(request.denied),
    Reason.RequirementNotMet: asked(request.requirement),
    Reason.CreateFailed: asked(no_storage),
    Reason.ImageIncomplete: image_without_libc,
    Reason.ContainerWithoutDriver: nvidia_smi_is_nowhere,
}
