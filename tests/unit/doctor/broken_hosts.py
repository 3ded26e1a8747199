# SPDX-License-Identifier: Apache-2.0
"""For reasons of the catalogue, a host that has it, and the check that finds it."""

import os
import shutil
from collections.abc import Callable
from typing import Any, TypeAlias

from nvct.config import load
from nvct.config.model import Config
from nvct.container.plan.store import Store
from nvct.doctor import (
    driver,
    hardware,
    image_needs,
    parts,
    security,
    specifications,
)
from nvct.doctor.model import Finding, Part
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine.command import Completed
from nvct.host.model import Inventory
from nvct.host.nvml.mig_model import MigGpu, MigState
from tests.support import explained as request
from tests.support.explained import VISIBLE, explained
from tests.support.host_tree import LIB
from tests.support.shim_lab import Lab
from tests.unit.doctor import broken_nodes, test_hook_programs
from tests.unit.doctor import statuses as engine_statuses
from tests.unit.doctor import unread_files as unread_engine_files
from tests.unit.engine.docker_lab import RUNTIME_HOOK

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


def specs(*written: dict[str, Any], gpus: int | None = None) -> Case:
    """Return a case of a host with some specifications."""

    def look(lab: Lab) -> Findings:
        if gpus is not None:
            lab.driver(gpus=gpus)
        for spec in written:
            lab.spec(**{"kind": "acme.com/nic", **spec})
        return drifted(lab)

    return look


def file(path: str, text: str) -> Case:
    """Return a case of a host with a file of the lab."""

    def look(lab: Lab) -> Findings:
        (lab.home / path).write_text(text, encoding="utf-8")
        return node(lab)

    return look


def keys(table: str, **values: object) -> Case:
    """Return a case of a config.toml with some keys."""

    def look(lab: Lab) -> Findings:
        lab.keys.setdefault(table, {}).update({k.replace("_", "-"): v for k, v in values.items()})
        lab.configure()
        return node(lab)

    return look


# What nvct compiles and keeps.


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


# A container's request.


def request_of(*env: str, config: str = "") -> Case:
    """Return a case of a container's variables, on a host with a driver."""

    def prepare(lab: Lab) -> None:
        lab.driver()
        lab.configure(config + lab.config_toml.read_text(encoding="utf-8"))
        lab.asks(*env)

    return asked(prepare)


HOOK_GONE = {"devices": {"0": hook("/no/such/hook", env=["A=1"])}}
NO_ENV = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"


CASES: dict[Reason, Case] = {
    Reason.DriverNotLoaded: no_module,
    Reason.DriverNotFound: no_libraries,
    Reason.DriverNotWorking: lambda lab: driver_root(lab, status=18),
    Reason.DriverIncomplete: no_libcuda,
    Reason.DriverContainerNotReady: lambda lab: driver_root(
        lab, ready=str(lab.home / ".driver-ctr-ready")
    ),
    Reason.ModuleNotLoaded: no_module_of_a_driver_container,
    Reason.GpuBoundElsewhere: nouveau,
    Reason.MigModePending: mig_waits_for_a_reset,
    Reason.CharacterLinksMissing: no_character_links,
    Reason.DeviceNodesRestricted: nodes_of_a_group,
    Reason.SelinuxDenies: selinux_denies,
    Reason.CgroupRulesOff: no_cgroups,
    Reason.SpecificationFolderWritable: writable_folder,
    Reason.DeviceNodesMissing: no_device_node,
    Reason.SpecificationMissing: node,
    Reason.SpecificationUnreadable: file("cdi/x.json", "{"),
    Reason.SpecificationConflict: specs({"name": "a.json"}, {"name": "b.json"}),
    Reason.SpecificationShadowed: specs({"folder": "cdi"}, {"folder": "cdi2"}),
    Reason.SpecificationStale: specs({"devices": {"0": mount("/no/such/file")}}),
    Reason.SpecificationIncomplete: specs({}, gpus=1),
    Reason.HookMissing: specs(HOOK_GONE),
    Reason.HookOtherRelease: lambda lab: shown(
        *test_hook_programs.findings(lab.home, "X version 1.20.0\nnvct: 0.0.7")
    ),
    Reason.HookWithoutEnvironment: lambda lab: specs({"devices": {"0": hook(str(lab.hook))}})(lab),
    Reason.ConfigurationInvalid: keys("nvidia-container-runtime", log_level="loud"),
    Reason.ConfigurationKeyIgnored: keys("nvidia-container-cli", debug="/var/log/x"),
    Reason.EngineDevicesUnchecked: keys("nvct.policy", default="deny"),
    Reason.PlanStale: damaged_plan,
    Reason.DriverViewDamaged: damaged_view,
    Reason.RefreshUnitFailed: lambda lab: unit(lab, "failed"),
    Reason.RefreshUnitInactive: lambda lab: unit(lab, "inactive"),
    Reason.RefreshUnitReplaced: replaced_unit,
    Reason.EngineNotConfigured: engine(),
    Reason.EngineFileUnread: lambda lab: shown(*unread_engine_files.findings(lab.home, "crio")),
    Reason.EngineConfigurationInvalid: engine(problem="/etc/docker/daemon.json is no JSON"),
    Reason.EngineNotReloaded: engine(differences=("the runtime nvidia is not in force",)),
    Reason.RuntimeProgramMissing: engine(runtimes=("nvidia",), missing=("nvidia",)),
    Reason.GpuNotRequested: asked(request.nothing),
    Reason.RequestIgnored: request_of(VISIBLE + "0", config=NO_ENV),
    Reason.RequestMalformed: asked(request.typo),
    Reason.DeviceUnknown: asked(request.unknown),
    Reason.RequestNotPermitted: asked(request.denied),
    Reason.RequirementNotMet: asked(request.requirement),
    Reason.CreateFailed: request_of(VISIBLE + "all", "NVIDIA_GDS=enabled"),
    Reason.ImageIncomplete: image_without_libc,
    Reason.ContainerWithoutDriver: nvidia_smi_is_nowhere,
}
