# SPDX-License-Identifier: Apache-2.0
"""Checks of a host's protection: SELinux, AppArmor, file modes, settings. Cold; changes nothing.

Denials are in the kernel's messages, unless auditd runs and takes them.
"""

from __future__ import annotations

import base64
import glob
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from nvct.doctor.model import Finding, Part, Severity, count, listed, unseen
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.engine.engine_files import docker_folder, image_env, read_list, read_object
from nvct.host import procfs
from nvct.host.roots import Roots

BOOLEAN = "fs/selinux/booleans/container_use_devices"
DENIED = re.compile(
    r"(?:audit: )?type=1400 audit\([^)]{1,40}\): avc: +denied "
    r".{0,400}(?:nvidia|xserver_misc_device_t).{0,400}tclass=chr_file"
)
"""A kernel message that SELinux denied a process a device node of the driver."""
PROFILE_DENIED = re.compile(
    r"(?:audit: )?type=1400 audit\([^)]{1,40}\): "
    r'apparmor="DENIED" .{0,200}?\bprofile="([^"]{1,200})"'
)
"""Type 1400 is the kernel's own; other types can have texts from programs in containers."""
HOST_PROFILE = re.compile(r"/|snap\.(?!docker\.|microk8s\.|k8s\.|lxd\.)")
"""Profiles of programs outside of containers, such as /usr/bin/evince or snap.firefox.firefox."""
FIELD = re.compile(r'\b(name|comm)="([^"]{1,200})"')
"""A quoted field. AppArmor writes a value with a quote or space in unquoted hexadecimal digits."""
DRIVER_NODE = re.compile(r"/dev/(?:nvidia|dri/renderD)")
OTHERS = stat.S_IWGRP | stat.S_IWOTH


def spec_folders(node: Node, *, owner: int = 0) -> Part:
    """Check that only root (`owner` in tests) can write specifications, which engines obey."""
    folders = node.settings.spec_dirs
    there = [folder for folder in folders if os.path.isdir(folder)]
    if not there:
        return Part.absent(f"no {' and no '.join(folders)}")
    wrong = [text for folder in there for text in _writable(folder, owner)]
    found = Finding.each(Reason.SpecificationFolderWritable, "error", wrong)
    return Part.of(*found, otherwise=f"only root can write {' and '.join(there)}")


def _writable(folder: str, owner: int) -> Iterator[str]:
    for path in (folder, *(f"{folder}/{name}" for name in procfs.list_directory(folder))):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if status.st_uid != owner:
            yield f"{path} belongs to the user {status.st_uid}, not to root"
        elif status.st_mode & OTHERS:
            yield f"other users can write {path}: mode {stat.S_IMODE(status.st_mode):04o}"


def selinux(node: Node) -> Part:
    """Check the SELinux boolean that lets containers use devices, and the kernel's denials."""
    enforce = (procfs.read_text(f"{node.roots.sys}/fs/selinux/enforce") or "").strip()
    if enforce != "1":
        return Part.absent("SELinux is permissive" if enforce else "SELinux is off")
    value = (procfs.read_text(f"{node.roots.sys}/{BOOLEAN}") or "").split()
    if not value:
        text = f"SELinux is enforcing; its boolean {os.path.basename(BOOLEAN)} cannot be read"
        return Part.of(Finding(Reason.SelinuxDenies, "unknown", text))
    denied = [message.text for message in node.log.messages if DENIED.search(message.text)]
    if value[0] == "1" and denied:
        text = f"SELinux denied a device of the driver: {denied[-1]}"
        remedy = "Update container-selinux, or allow it: `ausearch -m avc -ts boot | audit2allow`."
        return Part.of(Finding(Reason.SelinuxDenies, "warning", text, remedy))
    if value[0] == "1":
        return Part.of("SELinux is enforcing, but lets containers use devices")
    text = f"SELinux is enforcing, and {os.path.basename(BOOLEAN)} is off"
    return Part.of(Finding(Reason.SelinuxDenies, "warning", text))


def apparmor(node: Node) -> Part:
    """Check AppArmor's denials of the driver's devices in the last hour.

    Older denials may be by a profile that was corrected since then.
    """
    enabled = procfs.read_text(f"{node.roots.sys}/module/apparmor/parameters/enabled") or ""
    if enabled.strip() != "Y":
        return Part.absent("AppArmor is off")
    if node.log.problem:
        text = f"AppArmor's denials are unknown: {node.log.problem}"
        return Part.of(Finding(Reason.AppArmorDenies, "unknown", text))
    denied: dict[tuple[str, ...], str] = {}
    for message, _ in node.log.recent():
        if match := PROFILE_DENIED.match(message):
            fields = dict(FIELD.findall(message))
            if DRIVER_NODE.match(fields.get("name", "")):
                key = (match[1], fields["name"])
                denied[key] = f"profile {match[1]} of AppArmor denies {fields['name']}"
                denied[key] += f" to {fields['comm']}" if "comm" in fields else ""
    if not denied:
        return Part.of("AppArmor is on, but denied no device of the driver in the last hour")
    found = [
        Finding(Reason.AppArmorDenies, "note" if HOST_PROFILE.match(profile) else "warning", text)
        for (profile, _), text in denied.items()
    ]
    found.sort(key=lambda finding: not finding.is_fault)
    return Part.of(*found)


def management(node: Node) -> Part:
    """Check for users other than root who can change MIG, by its node or by a specification."""
    path = _mig_capability(node.roots)
    mode = stat.S_IMODE(os.stat(path).st_mode) if path else 0
    text = f"{path}, which changes MIG devices, has mode {mode:04o}: other users can open it"
    found = Finding.each(Reason.ManagementWithinReach, "error", [text] if mode & 0o066 else [])
    given = [
        f"{file.path} defines {file.spec['kind']}: any user of CDI devices can get every node"
        for file in node.registry.specs
        if file.spec["kind"].startswith("management.")
    ]
    found += Finding.each(Reason.ManagementWithinReach, "note", given)
    if not found and not path:
        return Part.absent("no such node or spec")
    return Part.of(*found, otherwise="only root can open the nodes that change MIG")


def _mig_capability(roots: Roots) -> str:
    """Return the node of mig/config, nvidia-capN, which changes MIG devices; "" without one."""
    text = procfs.read_text(f"{roots.proc}/driver/nvidia/capabilities/mig/config") or ""
    match = re.search(r"^DeviceFileMinor: (\d+)$", text, re.MULTILINE)
    path = f"{roots.dev}/nvidia-caps/nvidia-cap{match[1]}" if match else ""
    return path if os.path.exists(path) else ""


# Images. Docker keeps an image's configuration in image/DRIVER/imagedb, containers/storage
# (Podman, CRI-O) in overlay-images. containerd keeps it among all other content, which is not
# searched.

STORAGE = "var/lib/containers/storage/*-images"
ASKS = "NVIDIA_VISIBLE_DEVICES=all"
FILES = 2000
NAMED = 3


def images_ask_for_all(node: Node) -> Part:
    """Check that no image gives its containers all GPUs without a request of the user."""
    root, settings = node.host.rstrip("/"), node.settings
    names = sorted({*_docker(root), *_storage(root)})
    if not names:
        for path in (f"{docker_folder(root)}/image", f"{root}/var/lib/containers/storage"):
            if part := unseen(Reason.ImagesAskForAll, path):
                return part
        text = "no image of Docker, Podman or CRI-O sets it; those of containerd are not searched"
        return Part.absent(text)
    things = f"{count(len(names), 'image')} with {ASKS}: {listed(names, NAMED)}"
    if not settings.accept_envvar_when_unprivileged:
        return Part.of(f"{things}; config.toml ignores it")
    if settings.policy:
        return Part.of(f"{things}; the policy decides")
    is_default = any(status.is_default for status in node.statuses)
    severity: Severity = "warning" if is_default else "note"
    how = "every container of them" if is_default else "containers of them with --runtime=nvidia"
    text = f"{things}; {how} get all GPUs"
    return Part.of(Finding(Reason.ImagesAskForAll, severity, text))


def _docker(root: str) -> Iterator[str]:
    for folder in glob.glob(f"{docker_folder(root)}/image/*"):
        listed = read_object(f"{folder}/repositories.json").get("Repositories")
        names = {
            str(digest): str(name)
            for tags in (listed.values() if isinstance(listed, dict) else ())
            for name, digest in (tags.items() if isinstance(tags, dict) else ())
            if "@" not in str(name)
        }
        for path in glob.glob(f"{folder}/imagedb/content/sha256/*")[:FILES]:
            digest = path.rpartition("/")[2]
            if _asks(read_object(path)):
                yield names.get(f"sha256:{digest}", digest[:12])


def _storage(root: str) -> Iterator[str]:
    for folder in glob.glob(f"{root}/{STORAGE}"):
        for image in read_list(f"{folder}/images.json")[:FILES]:
            id_ = str(image.get("id") if isinstance(image, dict) else "")
            # Big data files are named by their key in base64: containers/storage, images.go.
            key = base64.b64encode(f"sha256:{id_}".encode()).decode()
            if _asks(read_object(f"{folder}/{id_}/={key}")):
                names = image.get("names")
                yield str(names[0]) if isinstance(names, list) and names else id_[:12]


def _asks(document: dict[str, Any]) -> bool:
    return ASKS in (image_env(document) or ())
