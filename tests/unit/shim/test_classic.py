# SPDX-License-Identifier: Apache-2.0
"""The hook's work, done by the shim before the container exists; what it leaves to the hook."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nvct.linux import ldcache
from nvct.oci.bundle import Bundle
from nvct.plan import compile as compiler
from nvct.plan import inject, model
from nvct.rootfs import linker_conf, profile
from nvct.shim import classic
from tests.support.containers import Container
from tests.support.forked import in_mount_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.cdi.types import Spec

MACHINE = os.uname().machine
LOADER = "/lib64/ld-linux-x86-64.so.2" if MACHINE == "x86_64" else "/lib/ld-linux-aarch64.so.1"
DEBIAN = f"/usr/lib/{MACHINE}-linux-gnu"
CACHE, DROP_IN = "/etc/ld.so.cache", "/etc/ld.so.conf.d/00-nvct.conf"
VERSION = "580.159.04"
LIBRARIES = {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1", "libplain": ""}
pytestmark = pytest.mark.skipif(MACHINE not in ldcache.FLAGS, reason="no ld.so.cache is known")


class Image(Container):
    """A container that asks for a GPU of a driver whose libraries are in `libdir`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.libdir = DEBIAN
        self.driver = Container(folder / "host")
        self.version = VERSION
        self.config: dict[str, Any] = {
            "root": {"path": "rootfs"},
            "process": {"env": ["PATH=/usr/bin"]},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            ],
        }

    def glibc(self, folder: str = DEBIAN, shown: str = "") -> Image:
        """Give it glibc in a folder, which its cache calls by another name, maybe."""
        self.library(LOADER, "ld.so", MACHINE)
        self.library(f"{folder}/libc.so.6", "libc.so.6", MACHINE)
        pairs = [("libc.so.6", f"{shown or folder}/libc.so.6")]
        self.file(CACHE, ldcache.merge(None, pairs, machine=MACHINE))
        return self

    def mount(self, destination: str, **more: str) -> Image:
        mount = {"destination": destination, "type": "bind", "source": "/volume", **more}
        self.config["mounts"].append(mount)
        return self

    def files(self) -> dict[str, str]:
        """Return the driver's files on the host by their paths in a container."""
        found = {}
        for stem, soname in LIBRARIES.items():
            path = f"{self.libdir}/{stem}.so.{self.version}"
            found[path] = str(self.driver.library(path, soname or None, MACHINE))
        return found

    def args(self) -> list[str]:
        """Return what the hook is told."""
        links = [(f"{s}.so.{self.version}", f"{self.libdir}/{n}") for s, n in LIBRARIES.items()]
        links = [(target, path) for target, path in links if not path.endswith("/")]
        links.append(("libcuda.so.1", f"{self.libdir}/libcuda.so"))
        words = [word for t, p in links for word in ("--link", f"{t}::{p}")]
        words += [f"--host-driver-version={self.version}", "--folder", self.libdir]
        return [*words, "--mask-params", "--application-profile"]

    def edits(self) -> list[model.Edits]:
        """Return the edits of a request, compiled as the cold side does."""
        hook = {
            "hookName": "createContainer", "path": "/bin/true", "env": ["A=B"],
            "args": ["nvidia-cdi-hook", "apply", *self.args()],
        }  # fmt: skip
        mounts = [{"hostPath": h, "containerPath": c} for c, h in self.files().items()]
        node = {"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3}
        spec: Any = {
            "kind": "nvidia.com/gpu",
            "devices": [{"name": "0", "containerEdits": {"deviceNodes": [node]}}],
            "containerEdits": {"hooks": [hook]},
        }
        part: Any = {"containerEdits": {"mounts": mounts}, "devices": []}
        parts: dict[str, Spec] = {"compute": part}
        plan = compiler.compile_spec(spec, "/own.json", "/config.toml", parts=parts)
        return model.collect(plan, ["nvidia.com/gpu=0"], ["compute"])

    def create(self, **more: Any) -> tuple[dict[str, Any], list[str]]:
        """Do what the shim does; return config.json and what the log says."""
        bundle = Bundle(str(self.bundle / "config.json"), json.dumps(self.config))
        notes: list[str] = []
        edits = classic.without_hook(bundle, str(self.bundle), self.edits(), notes.append, **more)
        inject.apply(bundle, edits)
        return json.loads(bundle.document.render()), notes

    def hooked(self) -> None:
        """Do what a runtime does with the hook in config.json: mounts first."""
        for path, source in self.files().items():
            self.file(path, Path(source).read_bytes())
        self.write_config(self.config)
        (self.root / "dev").mkdir(exist_ok=True)
        os.mknod(self.root / "dev/nvidia3", 0o20666, os.makedev(195, 3))
        words = [word for word in self.args() if word != "--mask-params"]
        assert self.hook("apply", "--proc-root", str(self.proc), *words) == 0
        (self.root / "dev/nvidia3").unlink()
        (self.root / "dev").rmdir()
        for path in self.files():
            (self.root / path.lstrip("/")).unlink()

    def found(self, name: str) -> list[str]:
        """Return what the linker's cache has for a name, in order."""
        return ldcache.parse((self.root / CACHE[1:]).read_bytes()).find(name)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def _merged(image: Image) -> None:
    image.glibc(shown=f"/lib/{MACHINE}-linux-gnu")
    image.link("/lib/" + f"{MACHINE}-linux-gnu", f"../usr/lib/{MACHINE}-linux-gnu")


def _stub(image: Image) -> None:
    image.glibc()
    pairs = [("libc.so.6", f"{DEBIAN}/libc.so.6"), ("libcuda.so.1", "/stub/libcuda.so.1")]
    image.file(CACHE, ldcache.merge(None, pairs, machine=MACHINE))
    image.link(f"{DEBIAN}/libcuda.so.1", "/stub/libcuda.so.1")
    image.file(f"{DEBIAN}/libnvidia-ml.so.1", "an empty one")


def _no_cache(image: Image) -> None:
    (image.glibc("/usr/lib64").root / CACHE[1:]).unlink()


def _compat(image: Image) -> None:
    image.glibc().library("/usr/local/cuda/compat/libcuda.so.595.1", "libcuda.so.1", MACHINE)


def _musl(image: Image) -> None:
    image.file(f"/lib/ld-musl-{MACHINE}.so.1", "musl")


def _started_before(image: Image) -> None:
    image.glibc("/usr/lib64")
    image.version = "570.1"
    image.create()
    image.version = VERSION


def _old_drop_in(image: Image) -> None:
    conf = linker_conf.LinkerConf([], ["/opt/driver"], ["/usr/local/nvidia/lib64"])
    image.glibc().file(DROP_IN, conf.render())


IMAGES: dict[str, Callable[[Image], object]] = {
    "debian": lambda image: image.glibc(),
    "merged-usr": _merged,
    "another-folder": lambda image: image.glibc("/usr/lib64"),
    "stub": _stub,
    "no-cache": _no_cache,
    "compat": _compat,
    "musl": _musl,
    "static": lambda image: image.file("/init"),
    "started-before": _started_before,
    "old-drop-in": _old_drop_in,
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mknod")
@pytest.mark.parametrize("name", IMAGES)
def test_the_root_is_as_the_hook_would_have_made_it(name: str, tmp_path: Path) -> None:
    by_hook, by_shim = Image(tmp_path / "hook"), Image(tmp_path / "shim")
    for image in (by_hook, by_shim):
        IMAGES[name](image)

    by_hook.hooked()
    document, notes = by_shim.create()

    assert notes == ["without a hook"]
    assert "hooks" not in document
    made = by_shim.tree()
    assert made == by_hook.tree()
    assert _modes(by_shim) == _modes(by_hook)
    assert profile.PATH[1:] in made
    assert made[f"{DEBIAN[1:]}/libcuda.so.1"] == f"-> libcuda.so.{VERSION}"


def _modes(image: Image) -> list[tuple[str, int]]:
    """Return who may do what with everything in the container."""
    paths = sorted(image.root.rglob("*"))
    return [(str(path.relative_to(image.root)), path.lstat().st_mode) for path in paths]


def test_the_mounts_are_those_of_a_container_with_a_hook(image: Image) -> None:
    image.glibc()
    wanted = [mount for one in image.edits() for mount in one["mounts"]]

    document, _ = image.create()

    assert [m["destination"] for m in document["mounts"][2:]] == sorted(p for p, _ in wanted)
    assert image.found("libcuda.so.1") == [f"{DEBIAN}/libcuda.so.1"]
    assert image.found("libplain.so.580.159.04") == [f"{DEBIAN}/libplain.so.{VERSION}"]


def test_a_second_start_changes_nothing(image: Image) -> None:
    image.glibc("/usr/lib64").create()
    before = image.tree()

    image.create()

    assert image.tree() == before


def test_a_second_create_of_an_edited_bundle_needs_no_hook_either(image: Image) -> None:
    image.glibc()
    image.config, _ = image.create()

    _, notes = image.create()

    assert notes == ["without a hook"]


def test_an_explanation_changes_nothing(image: Image) -> None:
    before = image.glibc().tree()

    document, notes = image.create(writes=False)

    assert (notes, "hooks" in document) == (["without a hook"], False)
    assert image.tree() == before


def test_every_gpu_node_of_config_json_is_in_the_profile(image: Image) -> None:
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
    image.config["linux"] = {"devices": [node]}

    image.glibc().create()

    assert image.read(profile.PATH) == profile.render(0b1001).decode()


def _user_namespace(image: Image) -> None:
    image.config["linux"] = {"namespaces": [{"type": "user"}]}


def _somebodys(image: Image) -> None:
    image.root.rename(image.bundle.parent / "mine")
    image.config["root"]["path"] = str(image.bundle.parent / "mine")


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


STAYS: dict[str, tuple[Callable[[Image], object], str]] = {
    "user-namespace": (_user_namespace, "it has a user namespace"),
    "somebodys-folder": (_somebodys, "is no root of this container's own"),
    "mount-over-etc": (lambda i: i.mount("/etc"), "/etc is a mount"),
    "mount-over-the-cache": (lambda i: i.mount("//etc/./ld.so.cache"), "ld.so.cache is a mount"),
    "mount-of-the-folder": (lambda i: i.mount(DEBIAN), "is a mount"),
    "mount-above-the-folder": (lambda i: i.mount("/usr"), "/usr is a mount"),
    "mount-in-the-folder": (lambda i: i.mount(f"{DEBIAN}/libmine.so.1"), "is a mount"),
    "mount-of-a-link": (lambda i: i.mount(f"{DEBIAN}/libcuda.so.1"), "is a mount"),
    "mount-of-compat": (lambda i: i.mount("/usr/local/cuda"), "/usr/local/cuda is a mount"),
    "mount-of-a-gpu": (lambda i: i.mount("/dev/nvidia7"), "/dev/nvidia7 is a mount"),
    "dev-of-the-host": (_bound_dev, "/dev is a mount|it has no /dev of its own"),
    "link-into-a-volume": (_link_into_a_volume, "/vol is a mount"),
    "unknown-cache": (lambda i: i.file(CACHE, b"cache 3.0"), "unknown format"),
    "cache-is-a-fifo": (_fifo, "is no regular file"),
    "no-root": (lambda i: i.config.pop("root"), "names no root"),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_the_hook_may_see_otherwise_is_left_to_it(image: Image, name: str) -> None:
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


def test_a_folder_in_the_place_of_a_link_is_for_the_hook_to_refuse(image: Image) -> None:
    (image.glibc().root / DEBIAN[1:] / "libcuda.so").mkdir()

    document, notes = image.create()

    assert "is a directory" in notes[0]
    assert document["hooks"]


def test_another_hook_keeps_ours(image: Image) -> None:
    bundle = Bundle(str(image.bundle / "config.json"), json.dumps(image.glibc().config))
    other = model.no_edits()
    other["hooks"] = {"createContainer": ['{"path":"/other"}']}
    edits = [*image.edits(), other]
    notes: list[str] = []

    assert classic.without_hook(bundle, str(image.bundle), edits, notes.append) == edits
    assert notes == ["with a hook: there is another hook"]


def test_a_read_only_root_is_for_the_hook(image: Image) -> None:
    def read_only() -> None:
        from nvct.linux import constants as c
        from nvct.linux.kernel import KERNEL

        root = str(image.glibc().root)
        KERNEL.mount(root, root, None, c.MS_BIND)
        KERNEL.mount(None, root, None, c.MS_BIND | c.MS_REMOUNT | c.MS_RDONLY)
        document, notes = image.create()
        assert notes == ["with a hook: the root is read-only"]
        assert document["hooks"]

    in_mount_namespace(read_only)
