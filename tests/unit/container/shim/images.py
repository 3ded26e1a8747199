# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvct.compile import plans as compiler
from nvct.compile.plans import linker_entries
from nvct.container.deliver import layout_classic
from nvct.container.deliver.bundle_root import Layout
from nvct.container.plan import hook_command, inject, model
from nvct.container.rootfs import linker, profile
from nvct.host.model import DriverFile
from nvct.linux import ldcache
from nvct.linux.kernel import KERNEL, Kernel
from nvct.oci.bundle import Bundle
from tests.support.containers import Container

MACHINE = os.uname().machine
LOADER = "/lib64/ld-linux-x86-64.so.2" if MACHINE == "x86_64" else "/lib/ld-linux-aarch64.so.1"
DEBIAN = f"/usr/lib/{MACHINE}-linux-gnu"
MODULE = "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so"
CACHE, DROP_IN = "/etc/ld.so.cache", "/etc/ld.so.conf.d/00-nvct.conf"
VERSION = "580.159.04"
LIBRARIES = {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1", "libplain": ""}


def written(
    layout: Layout | None,
    edits: list[model.Edits],
    notes: list[str],
    kernel: Kernel | None = KERNEL,
) -> list[model.Edits]:
    """Write a layout's changes to the root; return the edits of config.json."""
    if layout is None:
        return edits
    if kernel is not None:
        layout.write(kernel)
    notes.append(layout.summary)
    return layout.edits


class Image(Container):
    """A container that requests a GPU; the driver's libraries are in `libdir`."""

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
        cached = {}
        for stem, soname in LIBRARIES.items():
            path = f"{self.libdir}/{stem}.so.{self.version}"
            cached[path] = str(self.driver.library(path, soname or None, MACHINE))
        return cached

    def work(self) -> model.Work:
        links = [(f"{s}.so.{self.version}", f"{self.libdir}/{n}") for s, n in LIBRARIES.items()]
        links = [(target, path) for target, path in links if not path.endswith("/")]
        links.append(("libcuda.so.1", f"{self.libdir}/libcuda.so"))
        links.append((f"libglxserver_nvidia.so.{self.version}", MODULE))
        return {
            "links": [list(link) for link in links],
            "folders": [self.libdir],
            "compat": {"driver": self.version},
            "params": True,
            "profile": True,
        }

    def edits(self) -> list[model.Edits]:
        """Return the edits of a request, compiled as the cold side does."""
        mounts: Any = [{"hostPath": h, "containerPath": c} for c, h in self.files().items()]
        files = [
            DriverFile(
                host_path=h, container_path=c, reason="", kind="library", machine=MACHINE,
                soname=LIBRARIES[c.rpartition("/")[2].partition(".")[0]],
            )
            for c, h in self.files().items()
        ]  # fmt: skip
        node: Any = {"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3}
        own = compiler.Own(
            kind="nvidia.com/gpu",
            common={
                "": compiler.Part({}, self.work()),
                "compute": compiler.Part(
                    {"mounts": mounts}, cache=linker_entries(files, self.work())
                ),
            },
            devices=[(["0"], {"": compiler.Part({"deviceNodes": [node]})})],
            hook={"path": "/bin/true", "args": ["nvidia-cdi-hook", "apply"], "env": ["A=B"]},
        )
        plan = compiler.compile_own(own, "/own.json", "/config.toml")
        return model.collect(plan, ["nvidia.com/gpu=0"], ["compute"])

    def create(
        self, kernel: Kernel = KERNEL, *, writes: bool = True
    ) -> tuple[dict[str, Any], list[str]]:
        bundle = Bundle(str(self.bundle / "config.json"), json.dumps(self.config))
        notes: list[str] = []
        edits = self.edits()
        layout = layout_classic.decide(
            bundle, str(self.bundle), edits, notes.append, kernel=kernel
        )
        inject.apply(bundle, written(layout, edits, notes, kernel if writes else None))
        return json.loads(bundle.document.render()), notes

    def hooked(self) -> None:
        """Do what a runtime does with the hook in config.json: mounts first."""
        for path, source in self.files().items():
            self.file(path, Path(source).read_bytes())
        self.write_config(self.config)
        (self.root / "dev").mkdir(exist_ok=True)
        os.mknod(self.root / "dev/nvidia3", 0o20666, os.makedev(195, 3))
        words = hook_command.flags_of_work({**self.work(), "params": False})
        assert self.hook("apply", "--proc-root", str(self.proc), *words) == 0
        (self.root / "dev/nvidia3").unlink()
        (self.root / "dev").rmdir()
        for path in self.files():
            (self.root / path.lstrip("/")).unlink()

    def cached(self, name: str) -> list[str]:
        return ldcache.parse((self.root / CACHE[1:]).read_bytes()).find(name)


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


def _profiles(image: Image) -> None:
    image.glibc().file(f"{profile.FOLDER}/50-mine.conf", "{}").parent.chmod(0o2750)


def _group_of_etc(image: Image) -> None:
    image.glibc()
    os.chown(image.root / "etc", 0, 1234)
    (image.root / "etc").chmod(0o2775)


def _started_before(image: Image) -> None:
    image.glibc("/usr/lib64")
    image.version = "570.1"
    image.create()
    image.version = VERSION


def _old_drop_in(image: Image) -> None:
    conf = linker.LinkerConf([], ["/opt/driver"], ["/usr/local/nvidia/lib64"])
    image.glibc().file(DROP_IN, conf.render())


IMAGES: dict[str, Callable[[Image], object]] = {
    "debian": lambda image: image.glibc(),
    "merged-usr": _merged,
    "another-folder": lambda image: image.glibc("/usr/lib64"),
    "stub": _stub,
    "no-cache": _no_cache,
    "compat": _compat,
    "musl": _musl,
    "profiles": _profiles,
    "group-of-etc": _group_of_etc,
    "static": lambda image: image.file("/init"),
    "started-before": _started_before,
    "old-drop-in": _old_drop_in,
}
