# SPDX-License-Identifier: Apache-2.0
"""Makes, finds and removes simulated nodes: a GPU node's files in one folder.

::

    <tree>/driver     driver root: the user space of the driver (nvct_sim.package)
    <tree>/versions   its copies by hard links, one for each version that was used
    <tree>/proc, sys, dev    files of the kernel (nvct_sim.kernelfs, nvct_sim.sysfs)
    <tree>/etc        files that this node adds to the host's /etc
    <tree>/mnt        empty; mount point of the private file systems of nvct_sim.attach
    <tree>/kmsg       kernel messages about XIDs (nvct_sim.node_changes)
    <tree>/state      the state (nvct_sim.state), a hard link to a file in the driver root
    <tree>/node.json  description of the node; a folder with this file is a node

A tree can be used directly, with its folders as roots, or be mounted over a process's view of this
machine (nvct_sim.attach).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from nvct.errors import DocumentError, HostError, UsageError
from nvct.linux.files import write_atomic
from nvct_sim import bundle, kernelfs, mig, package, profile, state, sysfs
from nvct_sim.elf_writer import MACHINES

NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")
ROOT_BASE = Path("/var/lib/nvct-sim")
NODE_FILE = "node.json"
VERSIONS = "versions"
KMSG = "kmsg"
FIRST_SWITCH_BUS = 0xC0
COPIED = (
    "name", "memory", "cc", "arch", "brand", "migcapable", "power", "temp", "vbios", "cores",
    "buswidth", "fan", "vgpuhost", "vgpubranch",
)  # fmt: skip
"""Keys of a model that are copied into the state."""
FORMAT = 1

Nodes: TypeAlias = 'Literal["auto", "device", "plain"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A simulated node on disk."""

    name: str
    profile: str
    tree: Path
    machine: str
    installed: str  # version of the driver's user space on disk
    real_nodes: bool  # whether dev has device nodes, not plain files
    native: bool  # whether NVML and nvidia-smi work

    @property
    def driver_root(self) -> Path:
        """The root of the driver's user space."""
        return self.tree / "driver"

    @property
    def library_dir(self) -> Path:
        """The folder of the driver's libraries."""
        return self.driver_root / package.library_dir(self.machine)

    @property
    def state_file(self) -> Path:
        """The file that the simulated NVML library reads."""
        return self.tree / "state"

    @property
    def proc(self) -> Path:
        """The folder that stands for /proc."""
        return self.tree / "proc"

    @property
    def sys(self) -> Path:
        """The folder that stands for /sys."""
        return self.tree / "sys"

    @property
    def dev(self) -> Path:
        """The folder that stands for /dev."""
        return self.tree / "dev"

    @property
    def etc(self) -> Path:
        """The folder of files that this node adds to the host's /etc."""
        return self.tree / "etc"

    def state(self) -> state.State:
        """Return the node's current state."""
        return state.read(self.state_file)


def default_base(env: Mapping[str, str], uid: int) -> Path:
    """Return the folder of this user's nodes."""
    if uid == 0:
        return ROOT_BASE
    home = env.get("XDG_STATE_HOME") or f"{env.get('HOME', '/nonexistent')}/.local/state"
    return Path(home) / "nvct-sim"


def gpu_uuid(name: str, index: int) -> str:
    """Return the UUID of a node's GPU, which depends on the node's name alone."""
    return f"GPU-{uuid.uuid5(mig.NAMESPACE, f'{name}/{index}')}"


def create(
    name: str,
    profile_name: str,
    base: Path,
    *,
    driver_version: str | None = None,
    nodes: Nodes = "auto",
    native: bool = True,
    machine: str | None = None,
    native_cache: Path | None = None,
) -> Node:
    """Create a node below base, with NVML if native; UsageError, ContainerNotPossibleError."""
    node_profile = profile.load(profile_name)
    version = driver_version or node_profile.driver
    machine = machine or platform.machine()
    _check(name, version, machine, native=native)
    tree = base.absolute() / name
    if tree.exists():
        raise UsageError(f"{tree} exists", hint="choose another name, or destroy it first")
    built = _build(native_cache or base / ".native") if native else None
    try:
        base.mkdir(parents=True, exist_ok=True)
        # Created aside, then renamed, so that a folder with a node's name is a complete node.
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=base) as folder:
            aside = Path(folder, name)
            aside.mkdir()
            node = Node(
                name=name, profile=node_profile.name, tree=aside, machine=machine,
                installed=version, real_nodes=_real_nodes(aside, nodes), native=native,
            )  # fmt: skip
            _fill(node, first_state(name, node_profile, version, tree), built)
            aside.rename(tree)
    except OSError as error:
        raise HostError(f"cannot make a simulated node in {base}: {error}") from error
    return load(tree)


def _check(name: str, version: str, machine: str, *, native: bool) -> None:
    if not NAME.fullmatch(name):
        raise UsageError(f"bad node name {name!r}", hint="use a-z, 0-9, dot and dash")
    if not VERSION.fullmatch(version):
        raise UsageError(f"bad driver version {version!r}", hint="write it like 580.159.04")
    if machine not in MACHINES or machine == "i386":
        raise UsageError(f"cannot simulate a driver for machine {machine!r}")
    if native and machine != platform.machine():
        raise UsageError(
            f"NVML for {machine} cannot be built on {platform.machine()}",
            hint="create the node with --plain",
        )


def _build(cache: Path) -> dict[str, Path]:
    from nvct_sim.native import build  # a compiler is needed only here

    return build.build(cache)


def _real_nodes(folder: Path, nodes: Nodes) -> bool:
    """Report whether device nodes are to be made; HostError if required ones cannot be made."""
    if nodes == "plain":
        return False
    error = kernelfs.node_refusal(folder)
    if error is not None and nodes == "device":
        raise HostError(
            f"cannot make device nodes in {folder}: {error.strerror}", hint=kernelfs.remedy()
        ) from error
    return error is None


def first_state(name: str, node_profile: profile.Profile, version: str, tree: Path) -> state.State:
    """Return the initial state of a new node with this profile."""
    first = state.State(1, version, node_profile.cuda, str(tree))
    aliases = _read(f"/lib/modules/{platform.release()}/modules.alias")
    used_majors = kernelfs.modules_majors(aliases) | kernelfs.host_majors(_read("/proc/devices"))
    extras = node_profile.extras
    first.add("major", **kernelfs.choose_majors(used_majors, kernelfs.usual_majors(extras)))
    if extras:
        first.add("extras", **extras)
    for index, gpu in enumerate(node_profile.gpus):
        _add_gpu(first, name, index, gpu)
    for index in range(extras.get("nvswitch", 0)):
        device = f"0x{node_profile.gpus[0].model['nvswitch']:08X}"
        bus = f"00000000:{FIRST_SWITCH_BUS + index:02X}:00.0"
        first.add("switch", index=index, bus=bus, device=device, numa=0)
    for index, gpu in enumerate(node_profile.gpus):
        for kind in gpu.model["mig"]:
            first.add("profile", gpu=index, **kind)
    for index, gpu in enumerate(node_profile.gpus):
        for mig_name in gpu.mig or ():
            mig.add_instance(first, index, mig_name)
    return first


def _add_gpu(first: state.State, name: str, index: int, gpu: profile.NodeGpu) -> None:
    model = gpu.model
    fields = {key: model[key] for key in COPIED if key in model}
    if model.get("serial", 1):
        digest = hashlib.sha256(f"{name}/{index}".encode()).hexdigest()
        fields["serial"] = int(digest[:10], 16)
    if gpu.links:
        fields |= {"nvlink": model["nvlink"], "links": ",".join(gpu.links)}
    first.add(
        "gpu", index=index, minor=gpu.minor, uuid=gpu_uuid(name, index), bus=gpu.bus,
        path=gpu.path, mig=int(gpu.mig is not None), lost=0, device=f"0x{model['device']:08X}",
        subsystem=f"0x{model['subsystem']:08X}", bar1=model.get("bar1", 256),
        ecccapable=model.get("ecc", 1), **{"class": f"0x{model.get('kind', 0x030200):06x}"},
        **fields,
    )  # fmt: skip


def _fill(node: Node, first: state.State, built: dict[str, Path] | None) -> None:
    package.skeleton(node.driver_root)
    (node.etc / "cdi").mkdir(parents=True)
    (node.tree / "mnt").mkdir()
    (node.tree / KMSG).touch()
    state.create(node.state_file, first, machine=node.machine)
    package.install(
        node.driver_root, node.installed, machine=node.machine, state=node.state_file, native=built
    )
    package.install_extras(
        node.driver_root, node.installed, kernelfs.extras(first), machine=node.machine
    )
    write_kernel(node)
    save(node)


@contextlib.contextmanager
def locked(node: Node) -> Iterator[None]:
    """Lock a node's user space against concurrent changes and copies."""
    folder = os.open(node.tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def frozen(node: Node) -> Path:
    """Return a copy of the current driver root, in a folder that no upgrade changes."""
    with locked(node):
        installed = load(node.tree).installed
        folder = node.tree / VERSIONS / installed
        if not folder.is_dir():
            aside = folder.with_name(f".{installed}")
            if aside.exists():
                bundle.remove(aside)
            bundle.clone_rootfs(node.driver_root, aside)
            aside.rename(folder)
    return folder


def write_kernel(node: Node) -> None:
    """Write proc, sys and dev from the current state."""
    now = node.state()
    host_devices = _read("/proc/devices")
    kernelfs.write_proc(node.proc, now, machine=node.machine, host_devices=host_devices)
    kernelfs.put(node.proc / "modules", sysfs.proc_modules(_read("/proc/modules"), now))
    sysfs.write(node.sys, now)
    kernelfs.write_dev(node.dev, now, groups(), real=node.real_nodes)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def groups() -> dict[str, int]:
    """Return the id of each of this host's groups, by name, for the owners of DRM nodes."""
    fields = (line.split(":") for line in _read("/etc/group").splitlines())
    return {f[0]: int(f[2]) for f in fields if len(f) > 2 and f[2].isdigit()}


def save(node: Node) -> None:
    """Write node.json."""
    content = {
        "nvct-sim": FORMAT, "name": node.name, "profile": node.profile, "machine": node.machine,
        "installed": node.installed, "real_nodes": node.real_nodes, "native": node.native,
    }  # fmt: skip
    data = json.dumps(content, indent=2) + "\n"
    write_atomic(str(node.tree / NODE_FILE), data.encode(), sync=False)


def load(tree: Path) -> Node:
    """Return the node in a folder; UsageError if there is none, DocumentError if it is damaged."""
    path = tree / NODE_FILE
    try:
        content = json.loads(path.read_text())
        if content.pop("nvct-sim") != FORMAT:
            raise DocumentError(
                f"{path} is from another version", hint="destroy the node and create it again"
            )
        return Node(tree=tree.absolute(), **content)
    except OSError as error:
        raise UsageError(
            f"no simulated node at {tree}", hint="`nvct sim list` lists the nodes"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DocumentError(f"{path} is damaged: {error}") from error


def find(base: Path, name: str) -> Node:
    """Return the node with a name below base; UsageError if there is none."""
    if not NAME.fullmatch(name):
        raise UsageError(f"bad node name {name!r}", hint="use a-z, 0-9, dot and dash")
    return load(base / name)


def list_nodes(base: Path) -> list[Node]:
    """Return the nodes below base, sorted by name, without damaged ones."""
    nodes = []
    for path in sorted(base.glob(f"*/{NODE_FILE}")):
        if not path.parent.name.startswith("."):
            with contextlib.suppress(DocumentError):
                nodes.append(load(path.parent))
    return nodes


def destroy(node: Node) -> None:
    """Remove a node and all its files; HostError if a file, such as a mount point, stays."""
    aside = node.tree.with_name(f".{node.name}.gone.{os.getpid()}")
    try:
        node.tree.rename(aside)  # no longer a node from here on, even if the rest fails
        bundle.remove(aside)
    except OSError as error:
        raise HostError(f"cannot remove {node.tree}: {error}") from error
