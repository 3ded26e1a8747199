# SPDX-License-Identifier: Apache-2.0
"""Finds the driver and checks that it works, for `nvct validate`.

The host's own driver comes first, as in gpu-operator's nvidia-validator, then the driver in the
root of a driver container. A driver works if its nvidia-smi does. nvidia-smi runs in the driver's
root, so the image of this container need not match the driver.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nvct.doctor.model import Finding
from nvct.doctor.reasons import Reason
from nvct.engine import command
from nvct.engine.command import Completed, Run
from nvct.errors import HostError, OSErrorsAs
from nvct.host import dev_char, device_nodes
from nvct.host.driver.libraries import machine_directories
from nvct.host.model import Findings
from nvct.host.roots import Roots
from nvct.linux.files import read_bytes
from nvct.linux.kernel import KERNEL

Programs: TypeAlias = Callable[[str], Run]

SMI = "nvidia-smi"
TIMEOUT_S = 60.0
PROGRAM_DIRS = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/run/opengl-driver/bin", "/opt/bin",
          "/run/current-system/sw/bin", "/home/kubernetes/bin/nvidia/bin")  # fmt: skip
WSL = "/usr/lib/wsl/lib/nvidia-smi"
# Names in .driver-ctr-ready, with the module to be loaded and the status file.
COMPONENTS = {
    "GDS_ENABLED": ("nvidia_fs", "nvidia-fs-ready"),
    "GDRCOPY_ENABLED": ("gdrdrv", "gdrcopy-ready"),
    "GPU_DIRECT_RDMA_ENABLED": ("nvidia_peermem", "nvidia-peermem-ready"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The roots to look in."""

    host: str = "/"  # the host's root, as a path of the host
    host_here: str = "/host"  # the same root, as a path of this process
    driver: str = "/run/nvidia/driver"  # the root of a driver container, as a path of the host
    driver_here: str = "/run/nvidia/driver"  # the same root, as a path of this process
    sys: str = "/sys"
    # whether nvidia-smi may initialize the GPUs; else it only prints its version
    init: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A working driver: its roots on the host, and their mount points in operands."""

    is_host: bool
    root: str
    dev_root: str
    has_dev: bool = True  # whether dev_root is the driver's root; else it is the host's
    wsl: bool = False

    def values(self) -> dict[str, str]:
        """Return the content of driver-ready."""
        root_here = "/host" if self.is_host else "/driver-root"
        return {
            "IS_HOST_DRIVER": "true" if self.is_host else "false",
            "NVIDIA_DRIVER_ROOT": self.root,
            "DRIVER_ROOT_CTR_PATH": root_here,
            "NVIDIA_DEV_ROOT": self.dev_root,
            "DEV_ROOT_CTR_PATH": root_here if self.has_dev else "/host",
        }


def find(places: Places, ready: str, programs: Programs) -> Driver | Finding:
    """Return the driver of this host, or the reason why none works.

    `ready` is a file that a driver container must have written; "" for none.
    """
    windows = f"{places.host_here.rstrip('/')}{WSL}"
    wsl = os.path.exists(windows) and os.path.getsize(windows) > 0
    host_problem = "" if wsl else _smi_problem(places.host_here, places, programs)
    if not host_problem:
        return Driver(is_host=True, root=places.host, dev_root=places.host, wsl=wsl)
    if ready and not os.path.exists(ready):
        text = f"the driver container is not ready: {ready} does not exist"
        context = f"and the host itself: {host_problem}"
        return Finding(Reason.DriverContainerNotReady, "error", text, context=context)
    if not os.path.isdir(places.driver_here):
        text = f"no working driver on the host: {host_problem}"
        context = f"and no driver container: {places.driver_here} does not exist"
        return Finding(Reason.DriverNotFound, "error", text, context=context)
    of_container = _smi_problem(places.driver_here, places, programs)
    if of_container:
        text = f"no working driver in {places.driver_here}: {of_container}"
        context = f"and none on the host: {host_problem}"
        return Finding(Reason.DriverNotWorking, "error", text, context=context)
    # dev/ alone, as for nvidia-validator, is not enough: it may be empty.
    has_dev = os.path.lexists(f"{places.driver_here}/dev/nvidiactl")
    dev_root = places.driver if has_dev else places.host
    return Driver(is_host=False, root=places.driver, dev_root=dev_root, has_dev=has_dev)


def components(ready: str, sys: str) -> dict[str, Finding]:
    """Return whether each optional module that the driver container's status file names is loaded.

    HostError if the driver container's file cannot be read.
    """
    with OSErrorsAs(HostError, f"{ready} cannot be read"):
        text = read_bytes(ready, 64 << 10).decode(errors="replace")
    findings = {}
    for line in text.splitlines():
        key, _, value = line.partition(":" if ":" in line else "=")
        if key.strip() in COMPONENTS and value.strip().strip("\"'").lower() == "true":
            module, name = COMPONENTS[key.strip()]
            loaded = os.path.exists(f"{sys}/module/{module}")
            text = f"the module of {name} is {'loaded' if loaded else 'not loaded yet'}"
            findings[name] = Finding(Reason.ModuleNotLoaded, "ok" if loaded else "error", text)
    return findings


def in_this_container(environ: Mapping[str, str]) -> Finding | None:
    """Return the reason why this container cannot use a GPU, None if nvidia-smi works."""
    program = shutil.which(SMI, path=environ.get("PATH"))
    if not program:
        text = f"{SMI} is not on PATH: this container got no driver"
        remedy = "start it with the runtime nvidia and NVIDIA_VISIBLE_DEVICES=all"
        return Finding(Reason.ContainerWithoutDriver, "error", text, remedy)
    completed = command.run([program], TIMEOUT_S, env=dict(environ))
    if not completed.status:
        return None
    text = f"{program} fails in this container: {completed.reason}"
    return Finding(Reason.DriverNotWorking, "error", text)


def _smi_problem(root: str, places: Places, programs: Programs) -> str:
    """Return why nvidia-smi does not work in a root, "" if it does."""
    if not os.path.isdir(root):
        return f"{root} does not exist"
    program, arguments = smi_of(root), [] if places.init else ["--version"]
    if not program:
        return f"{root} has no {SMI}"
    completed = programs(root)([program, *arguments], TIMEOUT_S)
    if completed.status == command.NOT_FOUND:
        completed = _run_with_host_libraries(root, program, arguments, places, programs)
    return "" if completed.status == 0 else f"{program}: {completed.reason}"


def smi_of(root: str) -> str:
    """Return the path of nvidia-smi, working or not, in a root; "" if there is none."""
    paths = (f"{folder}/{SMI}" for folder in PROGRAM_DIRS)
    return next((path for path in paths if os.path.lexists(root.rstrip("/") + path)), "")


def _run_with_host_libraries(
    root: str, program: str, arguments: list[str], places: Places, programs: Programs
) -> Completed:
    """Run the nvidia-smi of a root without a C library, with the host's libraries.

    Google's COS has such a root, and so has a node where only the driver's files are mounted.
    """
    usual = ("/lib64", "/usr/lib64", *machine_directories(os.uname().machine))
    folders = [folder for folder in usual if os.path.isdir(root + folder)]
    completed = command.Completed(status=command.NOT_FOUND, err=f"{root}{program} cannot be run")
    for base, prefix in ((places.host_here, places.driver), ("/", root)):
        env = {**command.ENV, "LD_LIBRARY_PATH": ":".join(prefix + name for name in folders)}
        if root == places.driver_here and os.path.isdir(base):
            completed = programs(base)([prefix + program, *arguments], TIMEOUT_S, env)
        if completed.status != command.NOT_FOUND:
            break
    return completed


DEV_CHAR = "/host-dev-char"


def make_links(found: Driver, places: Places, say: Callable[[str], None]) -> None:
    """Make the links in /dev/char; load modules and make device nodes if needed.

    HostError if the kernel has no major for a node.
    """
    folder = DEV_CHAR if os.path.isdir(DEV_CHAR) else f"{places.host_here.rstrip('/')}/dev/char"
    here = places.host_here if found.is_host else places.driver_here
    if found.is_host or found.dev_root == found.root:
        # nvidia-smi may have skipped the initialization of the GPUs.
        is_loaded = os.path.exists(f"{places.sys}/module/nvidia")
        for warning in () if is_loaded else device_nodes.load(here, device_nodes.run):
            say(f"warning: {warning}")
    roots = Roots(driver_root=here, dev_root=found.dev_root, sys=places.sys)
    findings = Findings()
    nodes = device_nodes.plan_nodes(roots, ["control"], findings)
    device_nodes.make_nodes(nodes, KERNEL)
    planned = dev_char.plan_links(roots, folder, findings, create_all=True)
    dev_char.update_links(planned, folder, KERNEL)
    for sentence in (*findings.warnings, *(dev_char.describe(step) for step in planned.steps)):
        if sentence:
            say(sentence)
    if planned.missing:
        raise device_nodes.missing_majors_error(planned.missing, roots)
