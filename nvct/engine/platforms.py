# SPDX-License-Identifier: Apache-2.0
"""Recognizes the platform of an engine, which decides which file may be edited, if any.

`RULES` has a row for each platform. Sources: the projects' documents and scripts (k3s
pkg/agent/containerd, k0s docs/runtime.md, MicroK8s run-containerd-with-args, docker-snap,
amazon-eks-ami nodeadm, AgentBaker). Contract: only reads.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from nvct.config import toml_file
from nvct.engine.model import Engine, Files
from nvct.engine.processes import ROOTLESS
from nvct.errors import DocumentError
from nvct.host.go_pattern import matches

OTHER_FILE_SYSTEM = """
it runs in another file system, a container's or a snap's: run the command there
"""

OTHER_USER = """
it belongs to user {uid}: run the command as that user
"""

DOCKER_CONTAINERD = """
dockerd starts this containerd and writes its file: configure Docker
"""

DOCKER_DESKTOP = """
Docker Desktop's engine runs in a virtual machine of its own: it reads what Settings > Docker
Engine says, and no file of this host

it has GPUs only with its WSL 2 backend on Windows, which passes them on by itself; on Linux
install Docker Engine (docker-ce or docker.io) beside it
"""

SNAP_DOCKER = """
Docker from snap cannot run programs of the host and brings its own NVIDIA toolkit, which it sets
up at its start if a driver is loaded: snap restart docker

docker run --runtime=nvidia then works, --gpus does not; for that and for nvct: snap remove docker,
and install docker.io or docker-ce
"""

RANCHER = """
{name} registers the handler nvidia by itself when it starts and finds nvidia-container-runtime in
/usr/bin: systemctl restart {unit}

to make it the default: {program} server|agent --default-runtime=nvidia

{config} is rewritten at each start; handlers of other names go into {template} after a first line
{{{{ template "base" . }}}}
"""

RANCHER_DROP_IN = """
{config} is rewritten when {name} starts: only {drop_in} is written
"""

K0S = """
k0s writes {config} itself and merges into it what {drop_in} holds: put the handlers' tables there,
with version = 2; k0s then restarts containerd
"""

K0S_DROP_IN = """
k0s imports {folder} and restarts containerd when a file there changes
"""

MICROK8S_TEMPLATE = "/var/snap/microk8s/current/args/containerd-template.toml"
MICROK8S = f"""
{{config}} is made from {MICROK8S_TEMPLATE} at each start: that one is edited
"""

NIXOS = """
NixOS makes this file from its configuration: set hardware.nvidia-container-toolkit.enable = true,
which gives engines CDI

a runtime goes into virtualisation.docker.daemon.settings.runtimes or
virtualisation.containerd.settings
"""

TALOS = """
put the handler into machine.files of Talos' machine configuration, path
/etc/cri/conf.d/20-customization.part
"""

BOTTLEROCKET = """
Bottlerocket makes this file from its settings: its *-nvidia variants have the runtime built in
"""

KIND = """
this node of kind keeps the change as long as it lives; for new clusters put it into
containerdConfigPatches of kind's configuration
"""

EKS_BOOTSTRAP = """
EKS' bootstrap.sh writes {config} when the node joins: run the command after it
"""

EKS_NODEADM = """
nodeadm writes {config} at each boot: put the same TOML into spec.containerd.config of the node's
NodeConfig, or the next boot removes the change
"""

AKS = """
AKS writes {config} when it creates the node, and a new node image removes the change: run the
command from a DaemonSet; pools with GPUs have NVIDIA's runtime already
"""

GKE = """
GKE writes {config} at each boot: run the command from a DaemonSet

programs start only from /home/kubernetes/bin there: install nvct's into it and name them with
--nvidia-runtime-path
"""


def sentences(text: str, **values: str) -> tuple[str, ...]:
    """Return the sentences of a text, with the names in braces replaced by values."""
    paragraphs = text.strip().split("\n\n")
    return tuple(" ".join(paragraph.split()).format(**values) for paragraph in paragraphs)


Applies: TypeAlias = Callable[[Engine, Files, "Mapping[str, str]"], bool]
Adapt: TypeAlias = Callable[[Engine, Files], Engine]

MERGES_DEEPLY = (2, 0)
"""The first release of containerd in which a drop-in adds to the root file's tables."""
K0S_MANAGED = "# k0s_managed=true"
RANCHER_CONFIG = "/agent/etc/containerd/config.toml"
K0S_CONFIG = "/etc/k0s/containerd.toml"
K0S_DROP_INS = "/etc/k0s/containerd.d"
DOCKER_CONTAINERD_CONFIG = "/docker/containerd/containerd.toml"
DOES_ITSELF = ("true",)  # the restart command if the platform watches its files
DESKTOPS = ("/opt/docker-desktop", "/mnt/wsl/docker-desktop")


def adapt(engine: Engine, files: Files, env: Mapping[str, str]) -> Engine:
    """Return an engine with the changes that its platform requires."""
    for kind, is_here, change in RULES:
        if kind in ("", engine.engine) and is_here(engine, files, env):
            if callable(change):
                return change(engine, files)
            platform, text, values = change
            return _advised(replace(engine, platform=platform, **values), text)
    return engine


def _advised(engine: Engine, text: str, **values: str) -> Engine:
    """Return an engine with a text added to its advice."""
    advice = sentences(text, config=engine.config, **values)
    return replace(engine, advice=(*engine.advice, *advice))


def without_process(files: Files) -> list[Engine]:
    """Return the engines that a platform installed here but runs elsewhere."""
    if not any(os.path.isdir(files.at(folder)) for folder in DESKTOPS):
        return []
    desktop = Engine(engine="docker", platform="Docker Desktop", leave=True)
    return [_advised(desktop, DOCKER_DESKTOP)]


def _rancher(engine: Engine, files: Files) -> Engine:
    """k3s and RKE2 make the file from a template, and find NVIDIA's runtime by themselves."""
    config = engine.config
    rke2 = "/rke2" in config or "/rke2" in engine.binary
    name, program = ("RKE2", "rke2") if rke2 else ("k3s", "k3s")
    folder = posixpath.dirname(config)
    document = _document(files, config)
    base = "config-v3.toml" if document.get("version") == 3 else "config.toml"
    drop_in = f"{folder}/{base}.d/99-nvidia.toml"
    unit = engine.unit or f"{program}.service"
    engine = replace(engine, platform=name, restart=("systemctl", "restart", unit))
    if _imports(document, drop_in, folder) and engine.numbers >= MERGES_DEEPLY:
        engine = replace(engine, drop_in=drop_in)
        return _advised(engine, RANCHER_DROP_IN, name=name, drop_in=drop_in)
    template = f"{folder}/{base}.tmpl"
    engine = replace(engine, leave=True)
    return _advised(engine, RANCHER, name=name, program=program, unit=unit, template=template)


def _k0s(engine: Engine, files: Files) -> Engine:
    """k0s manages its file unless the file's first line is removed; the file imports a folder."""
    engine = replace(engine, platform="k0s")
    if (files.text(engine.config) or "").splitlines()[:1] != [K0S_MANAGED]:
        return engine  # the file is the admin's
    drop_in = f"{K0S_DROP_INS}/nvidia.toml"
    document = _document(files, engine.config)
    if _imports(document, drop_in, "/etc/k0s") and engine.numbers >= MERGES_DEEPLY:
        engine = replace(engine, drop_in=drop_in, restart=DOES_ITSELF)
        return _advised(engine, K0S_DROP_IN, folder=K0S_DROP_INS)
    return _advised(replace(engine, leave=True), K0S, drop_in=drop_in)


def _rootless(engine: Engine, _files: Files) -> Engine:
    unit = engine.unit or "docker.service"
    return replace(engine, platform="rootless", restart=("systemctl", "--user", "restart", unit))


def _has(path: str) -> Applies:
    return lambda _engine, files, _env: os.path.exists(files.at(path))


def _is_system(name: str) -> Applies:
    return lambda _engine, files, _env: _system(files) == name


LEFT: Mapping[str, Any] = {"leave": True}
# MicroK8s generates the file at each start from this template, which is TOML, too.
MICROK8S_CHANGES: Mapping[str, Any] = {
    "edit": MICROK8S_TEMPLATE, "drop_in": "",
    "restart": ("snap", "restart", "microk8s.daemon-containerd"),
}  # fmt: skip
# Engine ("" for any), condition, and either platform, advice and changed values, or a function
# that returns the engine. The first rule whose condition is true counts.
RULES: tuple[tuple[str, Applies, tuple[str, str, Mapping[str, Any]] | Adapt], ...] = (
    ("containerd", lambda engine, *_: engine.config.endswith(DOCKER_CONTAINERD_CONFIG),
     ("Docker", DOCKER_CONTAINERD, LEFT)),
    ("containerd", lambda engine, *_: engine.config.endswith(RANCHER_CONFIG), _rancher),
    ("containerd", lambda engine, *_: engine.config == K0S_CONFIG or "/k0s/" in engine.binary,
     _k0s),
    ("containerd", lambda engine, *_: "/snap/microk8s/" in engine.config + engine.binary,
     ("MicroK8s", MICROK8S, MICROK8S_CHANGES)),
    ("docker", lambda engine, _files, env: engine.binary.startswith("/snap/docker/")
     or env.get("SNAP_NAME") == "docker", ("snap", SNAP_DOCKER, LEFT)),
    ("docker", lambda engine, _files, env: bool(engine.uid) or ROOTLESS in env, _rootless),
    ("", lambda engine, *_: engine.config.startswith("/nix/store/"), ("NixOS", NIXOS, LEFT)),
    ("", _has("/etc/NIXOS"), ("NixOS", NIXOS, LEFT)),
    ("", _is_system("talos"), ("Talos", TALOS, LEFT)),
    ("", _is_system("bottlerocket"), ("Bottlerocket", BOTTLEROCKET, LEFT)),
    ("containerd", _has("/kind"), ("kind", KIND, {})),
    ("containerd", _has("/etc/eks/bootstrap.sh"), ("EKS", EKS_BOOTSTRAP, {})),
    ("containerd", _has("/etc/eks"), ("EKS", EKS_NODEADM, {})),
    ("containerd", _has("/etc/kubernetes/azure.json"), ("AKS", AKS, {})),
    ("containerd", _is_system("cos"), ("GKE", GKE, {})),
    ("containerd", _has("/home/kubernetes/bin"), ("GKE", GKE, {})),
)  # fmt: skip


def _system(files: Files) -> str:
    text = files.text("/etc/os-release") or files.text("/usr/lib/os-release") or ""
    match = re.search(r"^ID=[\"']?([^\"'\n]*)", text, re.MULTILINE)
    return match[1] if match else ""


def _document(files: Files, path: str) -> dict[str, object]:
    """Return a file's TOML, {} if it is malformed, which the engine's module reports."""
    try:
        return toml_file.parse(files.read(path) or b"", path)
    except DocumentError:
        return {}


def _imports(document: Mapping[str, object], path: str, folder: str) -> bool:
    """Report whether a containerd file imports a path; imports are relative to its folder."""
    imports = document.get("imports")
    patterns = imports if isinstance(imports, list) else []
    return any(matches(path, posixpath.join(folder, str(pattern))) for pattern in patterns)
