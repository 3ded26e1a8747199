# SPDX-License-Identifier: Apache-2.0
"""Layout classic: the shim does the hook's work, or leaves it to the hook."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.container.deliver import layout_classic
from nvct.container.plan import model
from nvct.container.rootfs import linker, profile
from nvct.linux import ldcache
from nvct.oci.bundle import Bundle
from tests.support.forked import in_a_mount_namespace
from tests.unit.container.shim.images import (
    CACHE,
    DEBIAN,
    DROP_IN,
    IMAGES,
    MACHINE,
    MODULE,
    VERSION,
    Image,
)

pytestmark = pytest.mark.skipif(MACHINE not in ldcache.FLAGS, reason="no ld.so.cache is known")


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mknod")
@pytest.mark.parametrize("name", IMAGES)
def test_the_root_is_the_same_as_with_the_hook(name: str, tmp_path: Path) -> None:
    by_hook, by_shim = Image(tmp_path / "hook"), Image(tmp_path / "shim")
    for image in (by_hook, by_shim):
        IMAGES[name](image)

    by_hook.hooked()
    document, notes = by_shim.create()

    assert notes == ["without a hook"]
    assert "hooks" not in document
    tree_by_shim = by_shim.tree()
    assert tree_by_shim == by_hook.tree()
    assert modes(by_shim) == modes(by_hook)
    assert profile.PATH[1:] in tree_by_shim
    assert tree_by_shim[f"{DEBIAN[1:]}/libcuda.so.1"] == f"-> libcuda.so.{VERSION}"


def modes(image: Image) -> list[tuple[str, int, int, int]]:
    files = [(path, path.lstat()) for path in sorted(image.root.rglob("*"))]
    root = image.root
    return [(str(p.relative_to(root)), s.st_mode, s.st_uid, s.st_gid) for p, s in files]


def test_a_second_start_changes_nothing(image: Image) -> None:
    image.glibc("/usr/lib64").create()
    before = image.tree()

    image.create()

    assert image.tree() == before


def test_an_explanation_changes_nothing(image: Image) -> None:
    before = image.glibc().tree()

    document, notes = image.create(writes=False)

    assert (notes, "hooks" in document) == (["without a hook"], False)
    assert image.tree() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_in_a_user_namespace_written_files_belong_to_its_root_user(image: Image) -> None:
    for path in [image.root, *image.glibc().root.rglob("*")]:
        os.chown(path, 200000, 300000, follow_symlinks=False)
    _user_namespace(image)
    image.config["linux"] |= {
        "uidMappings": [{"containerID": 0, "hostID": 200000, "size": 65536}],
        "gidMappings": [{"containerID": 0, "hostID": 300000, "size": 65536}],
    }

    document, notes = image.create()

    assert (notes, "hooks" in document) == (["without a hook"], False)
    assert {(p.lstat().st_uid, p.lstat().st_gid) for p in image.root.rglob("*")} == {
        (200000, 300000)
    }
    assert image.cached("libcuda.so.1") == [f"{DEBIAN}/libcuda.so.1"]
    assert (os.geteuid(), os.getegid()) == (0, 0)


def test_every_gpu_node_of_config_json_is_in_the_profile(image: Image) -> None:
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    image.config["linux"] = {"devices": [node]}

    image.glibc().create()

    assert image.read(profile.PATH) == profile.render(0b1001).decode()


def _user_namespace(image: Image) -> None:
    image.config["linux"] = {"namespaces": [{"type": "user"}]}


def _without_root(image: Image) -> None:
    _user_namespace(image)
    image.config["linux"]["uidMappings"] = [{"containerID": 1000, "hostID": 1000, "size": 1}]


def _somebodys(image: Image) -> None:
    image.root.rename(image.bundle.parent / "mine")
    image.config["root"]["path"] = str(image.bundle.parent / "mine")


def _somebodys_by_dots(image: Image) -> None:
    _somebodys(image)
    image.config["root"]["path"] = "../mine"


def _fifo(image: Image) -> None:
    (image.root / CACHE[1:]).unlink()
    os.mkfifo(image.root / CACHE[1:])


def _bound_dev(image: Image) -> None:
    image.config["mounts"][1] = {"destination": "/dev", "type": "bind", "source": "/dev"}


def _link_into_a_volume(image: Image) -> None:
    image.mount("/vol")
    (image.root / "vol").mkdir()
    (image.root / DEBIAN[1:]).rename(image.root / "vol/lib")
    image.link(DEBIAN, "/vol/lib")


def _compat_behind_a_link(image: Image) -> None:
    image.library("/usr/local/cuda-13/compat/libcuda.so.595.1", "libcuda.so.1", MACHINE)
    image.link("/usr/local/cuda", "cuda-13")
    image.mount("/usr/local/cuda-13")


def _dots_behind_a_link(image: Image) -> None:
    (image.root / "etc/inner").mkdir()
    image.link("/link", "/etc/inner")
    image.mount("/link/../ld.so.conf.d")


def _link_to_the_root(image: Image) -> None:
    image.link("/everything", "/")
    image.mount("/everything")


def _musl_and_a_mount(image: Image) -> None:
    IMAGES["musl"](image)
    image.mount(f"/etc/ld-musl-{MACHINE}.path")


STAYS: dict[str, tuple[Callable[[Image], object], str]] = {
    "user-namespace-of-another": (_user_namespace, "it joins a user namespace"),
    "user-namespace-without-root": (_without_root, "the user namespace has no root"),
    "somebodys-folder": (_somebodys, "is not a root of this container alone"),
    "somebodys-folder-by-dots": (_somebodys_by_dots, "is not a root of this container alone"),
    "mount-over-etc": (lambda i: i.mount("/etc"), "/etc is a mount"),
    "mount-over-the-cache": (lambda i: i.mount("//etc/./ld.so.cache"), "ld.so.cache is a mount"),
    "mount-of-the-folder": (lambda i: i.mount(DEBIAN), "is a mount"),
    "mount-above-the-folder": (lambda i: i.mount("/usr"), "/usr is a mount"),
    "mount-in-the-folder": (lambda i: i.mount(f"{DEBIAN}/libmine.so.1"), "is a mount"),
    "mount-of-a-link": (lambda i: i.mount(f"{DEBIAN}/libcuda.so.1"), "is a mount"),
    "mount-of-compat": (lambda i: i.mount("/usr/local/cuda"), "/usr/local/cuda is a mount"),
    "mount-of-a-gpu": (lambda i: i.mount("/dev/nvidia7"), "/dev/nvidia7 is a mount"),
    "mount-of-compat-behind-a-link": (_compat_behind_a_link, "/usr/local/cuda-13 is a mount"),
    "mount-behind-dots": (_dots_behind_a_link, "/etc/ld.so.conf.d is a mount"),
    "mount-of-all": (lambda i: i.mount("/"), "/ is a mount"),
    "mount-by-a-link-to-the-root": (_link_to_the_root, "/ is a mount"),
    "mount-of-a-link-elsewhere": (lambda i: i.mount(MODULE), f"{MODULE} is a mount"),
    "mount-of-musl's-file": (_musl_and_a_mount, ".path is a mount"),
    "mount-over-dev": (lambda i: i.mount("/dev"), "it has no /dev of its own"),
    "dev-of-the-host": (_bound_dev, "/dev is a mount|it has no /dev of its own"),
    "link-into-a-volume": (_link_into_a_volume, "/vol is a mount"),
    "unknown-cache": (lambda i: i.file(CACHE, b"cache 3.0"), "unknown format"),
    "cache-is-a-fifo": (_fifo, "is not a regular file"),
    "no-root": (lambda i: i.config.pop("root"), "has no root.path"),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_root_that_the_hook_may_see_otherwise_is_left_to_it(image: Image, name: str) -> None:
    change, why = STAYS[name]
    change(image.glibc())
    before = image.tree()

    document, notes = image.create()

    (note,) = notes
    assert note.startswith("with a hook: ")
    assert any(part in note for part in why.split("|")), note
    assert len(document["hooks"]["createContainer"]) == 1
    assert image.tree() == before


def test_the_hosts_root_is_never_touched(image: Image) -> None:
    image.config["root"]["path"] = "/"

    document, notes = image.create()

    assert notes == ["with a hook: the container's root is the host's"]
    assert document["hooks"]


def test_with_another_hook_in_the_edits_the_hook_stays(image: Image) -> None:
    bundle = Bundle(str(image.bundle / "config.json"), json.dumps(image.glibc().config))
    other = model.no_edits()
    other["hooks"] = {"createContainer": ['{"path":"/other"}']}
    edits = [*image.edits(), other]
    notes: list[str] = []

    assert layout_classic.decide(bundle, str(image.bundle), edits, notes.append) is None
    assert notes == ["with a hook: there is another hook"]


@pytest.mark.parametrize("path", ["/etc", "/usr/local/cuda", DEBIAN])
def test_work_below_a_mount_of_another_spec_is_left_to_the_hook(image: Image, path: str) -> None:
    bundle = Bundle(str(image.bundle / "config.json"), json.dumps(image.glibc().config))
    before = image.tree()
    other = model.no_edits()
    other["mounts"] = [[path, f'{{"destination":"{path}","source":"/volume"}}']]
    edits = [*image.edits(), other]
    notes: list[str] = []

    assert layout_classic.decide(bundle, str(image.bundle), edits, notes.append) is None
    assert image.tree() == before
    assert "is a mount" in notes[0]


@in_a_mount_namespace
def test_a_read_only_root_is_left_to_the_hook(image: Image) -> None:
    from nvct.linux import constants as c
    from nvct.linux.kernel import KERNEL

    root = str(image.glibc().root)
    KERNEL.mount(root, root, None, c.MS_BIND)
    KERNEL.mount(None, root, None, c.MS_BIND | c.MS_REMOUNT | c.MS_RDONLY)
    document, notes = image.create()
    assert notes == ["with a hook: the root is read-only"]
    assert document["hooks"]


def test_links_into_a_view_of_an_earlier_start_are_removed(image: Image) -> None:
    conf = linker.LinkerConf([], [], ["/usr/local/nvidia/lib64"])
    image.glibc().file(DROP_IN, conf.render())
    old = [f"{DEBIAN}/libcuda.so.{VERSION}", f"{DEBIAN}/libnvidia-old.so.1", "/usr/bin/nvidia-smi"]
    (image.root / "usr/bin").mkdir()
    for path in old:
        folder = "bin" if "bin" in path else "lib64"
        image.link(path, f"/usr/local/nvidia/{folder}/{path.rpartition('/')[2]}")
    image.link(f"{DEBIAN}/libmine.so", "/usr/local/nvidia/lib64/libother.so")

    _, notes = image.create()

    assert notes == ["without a hook"]
    assert [path for path in old if (image.root / path[1:]).is_symlink()] == []
    assert (image.root / DEBIAN[1:] / "libmine.so").is_symlink()
    assert not (image.root / DROP_IN[1:]).exists()
