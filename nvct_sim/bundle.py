# SPDX-License-Identifier: Apache-2.0
"""Makes OCI bundles with a config.json and a rootfs like those of engines.

The first device rule denies everything, as in Docker's and containerd's bundles: a container sees
a device node without a rule, but cannot open it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW",
    "CAP_SETGID", "CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
)  # fmt: skip
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def clone_rootfs(source: Path, target: Path) -> None:
    """Clone a root file system by hard links; writers must replace files by rename(2)."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)


def make_bundle(
    folder: Path,
    rootfs: Path,
    args: Sequence[str],
    *,
    env: Sequence[str] = (),
    mounts: Sequence[Mapping[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
) -> Path:
    """Make a bundle in a folder: config.json and a root file system; return the folder."""
    folder.mkdir(parents=True)
    clone_rootfs(rootfs, folder / "rootfs")
    document = config(args, env=env, mounts=mounts, annotations=annotations)
    (folder / "config.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    return folder


def config(
    args: Sequence[str],
    *,
    env: Sequence[str] = (),
    mounts: Sequence[Mapping[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the config.json for a program; the root is the folder rootfs beside it."""
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(args),
            "env": [PATH, *env],
            "cwd": "/",
            "capabilities": {
                name: list(CAPABILITIES) for name in ("bounding", "effective", "permitted")
            },
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs"},
        "hostname": "nvct",
        "mounts": [*_system_mounts(), *mounts],
        "annotations": dict(annotations or {}),
        "linux": {
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *_usual_rules()]},
            "namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")],
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
        },
    }


def _system_mounts() -> list[dict[str, Any]]:
    plain = ["nosuid", "noexec", "nodev"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": plain},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
         "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
         "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
         "options": [*plain, "mode=1777", "size=65536k"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*plain, "ro"]},
    ]  # fmt: skip


def _usual_rules() -> list[dict[str, Any]]:
    return [
        {"allow": True, "type": "c", "major": 1, "minor": minor, "access": "rwm"}
        for minor in (3, 5, 7, 8, 9)
    ]


def remove(folder: Path) -> None:
    """Remove a folder that this user owns, with all its contents.

    Containers' roots and driver views have folders of mode 0555. Only root can empty such folders
    without a change of mode. Raises OSError if an entry cannot be removed.
    """
    folder.chmod(stat.S_IRWXU)
    for path, names, _ in os.walk(folder):  # top down: a folder's mode changes before it is read
        for name in names:
            if not os.path.islink(f"{path}/{name}"):
                os.chmod(f"{path}/{name}", stat.S_IRWXU)
    shutil.rmtree(folder)
