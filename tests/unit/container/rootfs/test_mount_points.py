# SPDX-License-Identifier: Apache-2.0
"""Private roots, made by an engine for one container, and shared roots."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.container.rootfs.mount_points import is_private
from nvct.linux import constants as c
from nvct.linux.kernel import KERNEL
from nvct.linux.root import Root
from tests.support.forked import in_a_mount_namespace

ID, LAYER, OTHER = "1a" * 32, "2b" * 32, "3c" * 32
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


def _mkdir(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


class Lab:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.store = _mkdir(work / "store")
        self.shared = _mkdir(work / "shared/tree")
        self.bundle = _mkdir(work / "bundle")
        self.root = self.bundle / "rootfs"

    def is_own(self) -> bool:
        with Root.open(str(self.root)) as root:
            return is_private(root, str(self.bundle), KERNEL)

    def plain(self) -> None:
        _mkdir(self.root)

    def linked_bundle(self) -> None:
        self.plain()
        (self.work / "link").symlink_to(self.bundle)
        self.bundle = self.work / "link"

    def overlay(self, target: Path | None = None) -> None:
        for name in ("lower", "upper", "work"):
            _mkdir(self.work / name)
        # An overlay on an overlay's upper layer is refused: a tmpfs is never one.
        KERNEL.mount("tmpfs", str(self.work / "upper"), "tmpfs")
        upper, work = (_mkdir(self.work / "upper" / name) for name in ("u", "w"))
        data = f"lowerdir={self.work}/lower,upperdir={upper},workdir={work}"
        KERNEL.mount("overlay", str(_mkdir(target or self.root)), "overlay", 0, data)

    def bind(self, target: Path | None = None) -> None:
        KERNEL.mount(str(self.shared), str(_mkdir(target or self.root)), None, c.MS_BIND)

    def on_itself(self) -> None:
        """Mount the folder over itself, as an idmapped root is made by hand."""
        self.plain()
        KERNEL.mount(str(self.root), str(self.root), None, c.MS_BIND)

    def on_itself_below_a_mount(self) -> None:
        KERNEL.mount("tmpfs", str(self.bundle), "tmpfs")
        self.on_itself()

    def containerd_native(self) -> None:
        self.bundle = _mkdir(self.work / "run/default/mine")
        self.root = self.bundle / "rootfs"
        (self.bundle / "work").symlink_to("/var/lib/containerd/tasks/default/mine")
        self.bind()

    def docker(self, folder: str = f"overlay2/{LAYER}/merged") -> None:
        _mkdir(self.store / "containers" / ID)
        self.bundle = _mkdir(self.work / "run/moby" / ID)
        self.root = _mkdir(self.store / folder)

    def docker_images_by_containerd(self) -> None:
        self.docker(f"rootfs/overlayfs/{ID}")
        self.overlay(self.root)

    def podman(
        self, folder: str = f"overlay/{LAYER}/merged", layer: str = LAYER, name: str = ""
    ) -> None:
        driver = folder.partition("/")[0]
        self.bundle = _mkdir(self.store / f"{driver}-containers/{ID}/userdata")
        self.root = _mkdir(self.store / folder)
        records = [
            {"id": OTHER, "image": "", "layer": OTHER, "metadata": json.dumps({"layer": LAYER})},
            {"id": ID, "names": ["x"], "image": "y", "layer": layer, "metadata": '{"id":"z"}'},
            {"id": LAYER, "image": "", "layer": OTHER},
        ]
        text = json.dumps(records, separators=(",", ":"))
        file = self.bundle.parent.parent / (name or "containers.json")
        file.write_text(text, encoding="ascii")

    def crio(self) -> None:
        self.podman()
        self.bundle = _mkdir(self.work / f"run/overlay-containers/{ID}/userdata")

    def podman_overlay_of_a_folder(self) -> None:
        self.podman(layer=OTHER)
        self.root = self.work / f"run/overlay-containers/{ID}/rootfs/merge"
        self.overlay()

    # Somebody else's.

    def linked_root(self) -> None:
        self.root.symlink_to(self.shared)

    def linked_into_the_bundle(self) -> None:
        _mkdir(self.bundle / "elsewhere")
        self.root.symlink_to("elsewhere")

    def folder_beside(self) -> None:
        self.root = Path(f"{_mkdir(self.bundle / 'rootfs')}/../../shared/tree")

    def of_the_host(self) -> None:
        self.bundle, self.root = Path("/"), Path("/etc")

    def mount_of_the_host(self) -> None:
        KERNEL.mount("tmpfs", "/etc", "tmpfs")
        self.of_the_host()

    def rootfs(self, folder: str = "shared/tree") -> None:
        self.podman(layer=OTHER)
        self.root = _mkdir(self.work / folder)

    def rootfs_on_a_mount(self) -> None:
        self.rootfs()
        KERNEL.mount("tmpfs", str(self.root), "tmpfs")

    def rootfs_on_an_overlay(self) -> None:
        self.rootfs("mine/merged")
        self.overlay(self.root)

    def rootfs_behind_a_link(self) -> None:
        self.rootfs()
        (self.work / "link").symlink_to(self.root)
        self.root = self.work / "link"

    def damaged_store(self) -> None:
        self.podman()
        (self.store / "overlay-containers/containers.json").write_bytes(b'[{"id":"' + ID.encode())

    def no_store(self) -> None:
        self.podman()
        (self.store / "overlay-containers/containers.json").unlink()

    def short_id(self) -> None:
        self.docker()
        _mkdir(self.store / "containers/mine")
        self.bundle = _mkdir(self.work / "mine")


OWN: dict[str, Callable[[Lab], None]] = {
    "runc by hand": Lab.plain,
    "runc by hand, linked bundle": Lab.linked_bundle,
    "overlay in the bundle": Lab.overlay,
    "a root on itself": Lab.on_itself,
    "a root on itself, in a tmpfs": Lab.on_itself_below_a_mount,
    "containerd, native": Lab.containerd_native,
    "Docker, overlay2": Lab.docker,
    "Docker, vfs": lambda lab: lab.docker(f"vfs/dir/{LAYER}"),
    "Docker, btrfs": lambda lab: lab.docker(f"btrfs/subvolumes/{LAYER}"),
    "Docker, containerd's images": Lab.docker_images_by_containerd,
    "Podman, overlay": Lab.podman,
    "Podman, vfs": lambda lab: lab.podman(f"vfs/dir/{LAYER}"),
    "Podman, btrfs": lambda lab: lab.podman(f"btrfs/subvolumes/{LAYER}"),
    "Podman, volatile": lambda lab: lab.podman(name="volatile-containers.json"),
    "Podman, --rootfs DIR:O": Lab.podman_overlay_of_a_folder,
    "CRI-O": Lab.crio,
}
OTHERS: dict[str, Callable[[Lab], None]] = {
    "link to a shared tree": Lab.linked_root,
    "link in the bundle": Lab.linked_into_the_bundle,
    "shared tree on the bundle": Lab.bind,
    "folder by dots": Lab.folder_beside,
    "folder of the host": Lab.of_the_host,
    "mount of the host": Lab.mount_of_the_host,
    "--rootfs": Lab.rootfs,
    "--rootfs in a folder named as a store": lambda lab: lab.rootfs("a/vfs/dir/b"),
    "--rootfs on a mount": Lab.rootfs_on_a_mount,
    "--rootfs on an overlay": Lab.rootfs_on_an_overlay,
    "--rootfs behind a link": Lab.rootfs_behind_a_link,
    "--rootfs of another container": lambda lab: lab.podman(layer=OTHER),
    "--rootfs of another container, vfs": lambda lab: lab.podman(f"vfs/dir/{LAYER}", OTHER),
    "damaged store": Lab.damaged_store,
    "no store": Lab.no_store,
    "no id": Lab.short_id,
}


@pytest.mark.parametrize(
    ("make", "is_private"),
    [pytest.param(make, True, id=name) for name, make in OWN.items()]
    + [pytest.param(make, False, id=name) for name, make in OTHERS.items()],
)
@in_a_mount_namespace
def test_a_root_that_the_engine_made_for_the_container_is_private(
    tmp_path: Path, make: Callable[[Lab], None], *, is_private: bool
) -> None:
    lab = Lab(tmp_path)
    make(lab)
    assert lab.is_own() is is_private
