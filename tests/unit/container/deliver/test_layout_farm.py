# SPDX-License-Identifier: Apache-2.0
"""Layout farm: its decisions for a container, and its changes of the root."""

from __future__ import annotations

import json
import os
import posix
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nvct.container.deliver import layout_farm
from nvct.container.plan import inject
from nvct.container.plan.model import no_edits
from nvct.container.rootfs import profile
from nvct.linux import ldcache
from nvct.linux.constants import MS_BIND, MS_RDONLY, MS_REMOUNT
from nvct.linux.kernel import KERNEL
from nvct.oci.bundle import Bundle
from nvct_sim.elf_writer import shared_object
from tests.support.containers import Container
from tests.support.forked import in_a_mount_namespace
from tests.unit.container.shim import images
from tests.unit.container.shim.images import CACHE, DROP_IN, LOADER, MACHINE
from tests.unit.container.shim.images import DEBIAN as LIBDIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.plan.model import Farm, Program

VIEW = "/var/lib/nvct/farm/580.159.04-abc"
OURS = "/usr/local/nvidia/lib64/libcuda.so.1"
HOOK: Program = {
    "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "apply"], "env": ["A=B"],
}  # fmt: skip
pytestmark = pytest.mark.skipif(MACHINE not in ldcache.FLAGS, reason="no ld.so.cache is known")


def table(**changes: Any) -> Farm:
    farm: Farm = {
        "view": VIEW, "why": "", "version": "580.159.04", "facts": [],
        "cache": {
            "compute": [["libcuda.so.1", "lib64/libcuda.so.1"]],
            "utility": [["libnvidia-ml.so.1", "lib64/libnvidia-ml.so.1"]],
        },
        "cache32": {"compute": [["libcuda.so.1", "lib/libcuda.so.1"]]},
        "links": {
            "utility": [["/usr/bin/nvidia-smi", "bin/nvidia-smi"]],
            "compute": [
                ["LIBDIR/libcuda.so.1", "lib64/libcuda.so.1"],
                ["LIBDIR/libcuda.so", "lib64/libcuda.so"],
                ["LIBDIR/libcuda.so.580.159.04", "lib64/libcuda.so.580.159.04"],
            ],
        },
        "links32": {"compute": [["LIBDIR32/libcuda.so.1", "lib/libcuda.so.1"]]},
        "mounts": {"graphics": [["/etc/vulkan/icd.d/nvidia_icd.json", '{"destination":"/v"}']]},
        "env": {"": ["NVIDIA_VISIBLE_DEVICES=void"], "compute": ["LIBCUDA=VIEW/lib64"]},
        "params": False, "staged": False,
    }  # fmt: skip
    farm.update(changes)  # type: ignore[typeddict-item]  # a test's own
    return farm


@dataclass
class Outcome:
    document: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def env(self) -> list[str]:
        return list(self.document["process"]["env"])

    @property
    def mounts(self) -> list[dict[str, Any]]:
        return list(self.document.get("mounts", []))

    @property
    def view(self) -> dict[str, Any] | None:
        return next((m for m in self.mounts if m.get("source") == VIEW), None)

    @property
    def reason(self) -> str:
        (note,) = [n for n in self.notes if n.startswith("layout classic: ")]
        return note.removeprefix("layout classic: ")


class Image(Container):
    """A container that asks for a GPU; its document is `config`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config: dict[str, Any] = {
            "root": {"path": "rootfs"},
            "process": {"env": ["PATH=/usr/bin"]},
            "mounts": [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
        }

    def glibc(self, **cached: str) -> Image:
        """Add glibc, and a cache with more libraries (underscores replace dots)."""
        self.library(LOADER, "ld.so", MACHINE)
        self.library(f"{LIBDIR}/libc.so.6", "libc.so.6", MACHINE)
        entries = {name.replace("_", "."): path for name, path in cached.items()}
        pairs = [("libc.so.6", f"{LIBDIR}/libc.so.6"), *entries.items()]
        self.file(CACHE, ldcache.merge(None, pairs, machine=MACHINE))
        return self

    def mount(self, destination: str, **more: str) -> Image:
        mount = {"destination": destination, "type": "bind", "source": "/volume", **more}
        self.config["mounts"].append(mount)
        return self

    def create(
        self,
        farm_table: Farm | None = None,
        capabilities: tuple[str, ...] | None = ("compute", "utility"),
        *,
        profile: bool = False,
    ) -> Outcome:
        requested = None if capabilities is None else list(capabilities)
        common, device, mark = no_edits(), no_edits(), no_edits()
        common["mounts"] = [["/usr/bin/classic", '{"destination":"/usr/bin/classic"}']]
        common["nodes"] = [_node("nvidiactl", 255)]
        common["gids"] = [44]
        hook = no_edits()
        hook["hook"] = {
            "program": HOOK,
            "work": {
                "links": [["libcuda.so.580.159.04", f"{LIBDIR}/libcuda.so.1"]],
                "folders": [LIBDIR], "compat": {"driver": "580.159.04"},
                "params": True, "profile": profile,
            },
        }  # fmt: skip
        device["nodes"] = [_node("nvidia3", 3)]
        mark["farm"] = {
            "table": farm_table or table(), "capabilities": requested, "common": [common, hook],
        }  # fmt: skip
        bundle = Bundle(str(self.bundle / "config.json"), json.dumps(self.config))
        notes: list[str] = []
        edits = [common, hook, mark, device]
        layout = layout_farm.decide(bundle, str(self.bundle), edits, notes.append)
        inject.apply(bundle, images.written(layout, edits, notes))
        return Outcome(json.loads(bundle.document.render()), notes)

    def cached(self, name: str) -> list[str]:
        return ldcache.parse((self.root / CACHE[1:]).read_bytes()).find(name)

    def linked(self, path: str) -> str:
        link = self.root / path.lstrip("/")
        return str(link.readlink()) if link.is_symlink() else ""


def _node(name: str, minor: int) -> Any:
    node = {"path": f"/dev/{name}", "type": "c", "major": 195, "minor": minor}
    return {"path": f"/dev/{name}", "node": json.dumps(node), "rule": ""}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_the_driver_is_one_mount_without_a_hook(image: Image) -> None:
    outcome = image.glibc().create()

    assert outcome.view == {
        "destination": "/usr/local/nvidia", "source": VIEW,
        "options": ["rbind", "ro", "nosuid", "nodev", "rprivate"],
    }  # fmt: skip
    assert outcome.mounts[-1] == outcome.view
    assert len(outcome.mounts) == 2
    assert "hooks" not in outcome.document
    nodes = [node["path"] for node in outcome.document["linux"]["devices"]]
    assert sorted(nodes) == ["/dev/nvidia3", "/dev/nvidiactl"]
    assert outcome.document["process"]["user"]["additionalGids"] == [44]
    assert "LIBCUDA=/usr/local/nvidia/lib64" in outcome.env
    assert not [entry for entry in outcome.env if entry.startswith("LD_LIBRARY_PATH")]
    assert outcome.notes == ["layout farm at /usr/local/nvidia"]


def test_a_file_below_the_mount_point_is_in_the_view(image: Image) -> None:
    """A driver in /usr/local/nvidia: a mount below the view, which is read-only, cannot be made."""
    path = "/usr/local/nvidia/firmware/gsp.bin"
    mount = json.dumps({"destination": path, "source": f"{VIEW}/firmware/gsp.bin"})
    for root in ("usr/bin", "usr/local/nvidia"):  # an image with an empty folder, too
        (image.root / root).mkdir(parents=True, exist_ok=True)

        outcome = image.glibc().create(table(mounts={"compute": [[path, mount]]}))

        assert outcome.mounts[-1] == outcome.view
        assert not [m for m in outcome.mounts if m["destination"] == path]
        assert not image.linked(path)


def test_the_linker_finds_the_drivers_library_before_the_images_own(image: Image) -> None:
    image.glibc(libcuda_so_1="/opt/stub/libcuda.so.1").create()

    assert image.cached("libcuda.so.1") == [OURS, "/opt/stub/libcuda.so.1"]
    assert image.cached("libc.so.6") == [f"{LIBDIR}/libc.so.6"]
    assert image.read(DROP_IN).splitlines()[-1] == "/usr/local/nvidia/lib64"
    assert image.read("/etc/ld.so.conf") == "include /etc/ld.so.conf.d/*.conf\n"


def test_a_static_image_gets_the_mount_alone(image: Image) -> None:
    outcome = image.create()

    assert outcome.view
    assert image.tree() == {}
    assert outcome.env == [
        "PATH=/usr/bin",
        "NVIDIA_VISIBLE_DEVICES=void",
        "LIBCUDA=/usr/local/nvidia/lib64",
    ]


def test_musls_path_file_gets_the_folder(image: Image) -> None:
    image.library(f"/lib/ld-musl-{MACHINE}.so.1", None, MACHINE)

    outcome = image.create()

    text = image.read(f"/etc/ld-musl-{MACHINE}.path")
    assert text == "/lib\n/usr/local/lib\n/usr/lib\n/usr/local/nvidia/lib64\n"
    assert CACHE[1:] not in image.tree()
    assert outcome.view


def test_capabilities_choose_entries_links_and_mounts_not_the_view(image: Image) -> None:
    outcome = image.glibc().create(capabilities=("graphics",))

    assert outcome.view
    assert image.cached("libcuda.so.1") == image.cached("libnvidia-ml.so.1") == []
    assert not image.linked("/usr/bin/nvidia-smi")
    assert {"destination": "/v"} in outcome.mounts
    assert not [entry for entry in outcome.env if entry.startswith("LIBCUDA")]


def test_with_compat32_the_32_bit_libraries_are_found(image: Image) -> None:
    image.glibc().create(capabilities=("compute", "compat32"))

    cache = ldcache.parse((image.root / CACHE[1:]).read_bytes())
    flags = {path: flags for name, path, flags, _, _ in cache.entries if name == "libcuda.so.1"}
    assert flags == {
        OURS: ldcache.FLAGS[MACHINE],
        "/usr/local/nvidia/lib/libcuda.so.1": ldcache.FLAGS["i386"],
    }
    assert image.read(DROP_IN).splitlines()[-1] == "/usr/local/nvidia/lib"


def compat(image: Image, version: str) -> None:
    name = f"libcuda.so.{version}"
    image.file(f"/usr/local/cuda-13/compat/{name}", shared_object(MACHINE, soname="libcuda.so.1"))
    image.link("/usr/local/cuda-13/compat/libcuda.so.1", name)
    image.link("/usr/local/cuda", "cuda-13")


@pytest.mark.parametrize(
    ("version", "destination", "before"),
    [("590.44.01", "/usr/local/nvidia/drv", ["/usr/local/cuda-13/compat"]),
     ("550.54.15", "/usr/local/nvidia", [])],
    ids=["newer", "older"],
)  # fmt: skip
def test_only_newer_cuda_compatibility_libraries_precede_the_drivers(
    image: Image, version: str, destination: str, before: list[str]
) -> None:
    compat(image.glibc(), version)

    view = image.create().view

    assert view
    assert view["destination"] == destination
    folders = [*before, f"{destination}/lib64"]
    assert image.cached("libcuda.so.1") == [f"{folder}/libcuda.so.1" for folder in folders]
    assert [ln for ln in image.read(DROP_IN).splitlines() if not ln.startswith("#")] == folders


@pytest.mark.parametrize(
    "destination",
    ["/usr/local/nvidia", "/usr/local", "/usr/local/nvidia/lib64", "/usr/./local//nvidia/"],
)
def test_a_mount_at_above_or_below_the_mount_point_means_classic(
    image: Image, destination: str
) -> None:
    before = image.glibc().tree()

    outcome = image.mount(destination).create()

    assert "is a mount" in outcome.reason
    assert "/usr/bin/classic" in [mount["destination"] for mount in outcome.mounts]
    assert len(outcome.document["hooks"]["createContainer"]) == 1
    assert image.tree() == before


@pytest.mark.parametrize(
    ("link", "target", "volume", "reason"),
    [
        ("", "", "/usr/local/cuda", "/usr/local/cuda is a mount"),
        ("/opt/gpu", "/usr/local", "/opt/gpu", "is a mount"),
        ("/usr/local/nvidia", "/data/nvidia", "/data", "/data is a mount"),
        ("/etc/ld.so.conf.d", "/data/conf", "/data", "/data is a mount"),
    ],
    ids=["compatibility libraries", "to the mount point", "from the mount point", "drop-in"],
)
def test_links_between_a_volume_and_where_the_driver_goes_mean_classic(
    image: Image, link: str, target: str, volume: str, reason: str
) -> None:
    image.glibc()
    if link:
        (image.root / target[1:]).mkdir(parents=True)
        image.link(link, target)

    assert reason in image.mount(volume).create().reason


@pytest.mark.parametrize("kind", ["file", "dangling link", "full folder", "file above"])
def test_files_of_the_image_at_the_mount_point_are_not_hidden(image: Image, kind: str) -> None:
    image.glibc()
    if kind == "file":
        image.file("/usr/local/nvidia", "x")
    elif kind == "dangling link":
        image.link("/usr/local/nvidia", "/nowhere")
    elif kind == "file above":
        image.file("/usr/local", "x")
    else:
        image.file("/usr/local/nvidia/lib64/libcuda.so.1", "x")

    assert "/usr/local" in image.create().reason


def test_an_empty_folder_of_the_image_or_of_an_earlier_start_is_used(image: Image) -> None:
    (image.glibc().root / "opt/nvidia/drv").mkdir(parents=True)
    image.link("/usr/local/nvidia", "/opt/nvidia")

    assert image.create().view


def test_links_are_made_where_programs_look(image: Image) -> None:
    image.glibc().create()

    assert image.linked("/usr/bin/nvidia-smi") == "/usr/local/nvidia/bin/nvidia-smi"
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.580.159.04"):
        assert image.linked(f"{LIBDIR}/{name}") == f"/usr/local/nvidia/lib64/{name}"


def unmerged(image: Image) -> Image:
    """Give an image the layout of Debian 11: libc is in /lib, packages' libraries below /usr."""
    image.library(LOADER, "ld.so", MACHINE)
    image.library(f"{LIBDIR.removeprefix('/usr')}/libc.so.6", "libc.so.6", MACHINE)
    return image


def test_without_a_merged_usr_links_are_below_usr(image: Image) -> None:
    unmerged(image).file(f"{LIBDIR}/libmine.so")

    image.create()

    assert image.linked(f"{LIBDIR}/libcuda.so.1") == OURS
    assert not image.linked(f"{LIBDIR.removeprefix('/usr')}/libcuda.so.1")


@pytest.mark.parametrize("kind", ["nothing", "file", "dangling link"])
def test_without_libraries_below_usr_links_are_beside_libc(image: Image, kind: str) -> None:
    unmerged(image)
    if kind == "file":
        image.file(LIBDIR, "x")
    elif kind == "dangling link":
        (image.root / LIBDIR[1:]).parent.mkdir(parents=True)
        image.link(LIBDIR, "/nowhere")

    image.create()

    assert image.linked(f"{LIBDIR.removeprefix('/usr')}/libcuda.so.1") == OURS


@pytest.mark.parametrize(
    ("folder", "linked"),
    [("/usr/lib/i386-linux-gnu", "/usr/lib/i386-linux-gnu"), ("/lib/i386-linux-gnu", ""),
     ("/usr/lib", "/usr/lib"), ("/usr/lib32", "/usr/lib32")],
)  # fmt: skip
def test_32_bit_libraries_are_linked_in_the_folder_of_their_libc(
    image: Image, folder: str, linked: str
) -> None:
    image.glibc().library(f"{folder}/libc.so.6", "libc.so.6", "i386")

    image.create(capabilities=("compute", "compat32"))

    link = f"{linked or folder}/libcuda.so.1"
    assert image.linked(link) == "/usr/local/nvidia/lib/libcuda.so.1"
    assert image.linked(f"{LIBDIR}/libcuda.so.1") == OURS


def test_a_folder_of_64_bit_libraries_gets_no_32_bit_ones(image: Image) -> None:
    image.library(LOADER.replace("lib64", "usr/lib"), "ld.so", MACHINE)
    image.link("/usr/lib64", "lib")
    image.link("/lib64", "usr/lib")
    image.library("/usr/lib/libc.so.6", "libc.so.6", MACHINE)  # as Arch has it

    image.create(capabilities=("compute", "compat32"))

    assert image.linked("/usr/lib/libcuda.so.1") == OURS


def old_links(image: Image) -> list[str]:
    """Leave what an earlier start with another driver left; return their paths."""
    names = ("libcuda.so.570.1", "libnvidia-old.so.1", "vdpau/libvdpau_nvidia.so.570.1")
    for name in names:
        link = image.root / LIBDIR[1:] / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"/usr/local/nvidia/lib64/{name}")
    return [f"{LIBDIR}/{name}" for name in names]


def test_links_of_an_earlier_driver_are_removed(image: Image) -> None:
    image.glibc().create()
    old = old_links(image)
    image.link(f"{LIBDIR}/libmine.so", "/usr/local/nvidia/elsewhere/libother.so")

    outcome = image.create()

    assert [path for path in old if image.linked(path)] == []
    assert image.linked(f"{LIBDIR}/libmine.so")
    assert image.linked(f"{LIBDIR}/libcuda.so.1") == OURS
    assert outcome.view


def test_thirty_thousand_links_of_an_image_cost_little(image: Image) -> None:
    image.glibc().create()
    for number in range(30_000):
        name = f"libx{number}.so"
        os.symlink(f"/usr/local/nvidia/lib64/{name}", image.root / LIBDIR[1:] / name)
    start = time.process_time()

    outcome = image.create()

    assert time.process_time() - start < 0.5
    assert outcome.view


def test_a_link_that_is_not_dangling_is_not_removed(image: Image) -> None:
    image.glibc().create()
    (image.root / "usr/local/nvidia").mkdir(parents=True)
    image.link("/usr/local/nvidia/drv", "/opt/drv")
    image.file("/opt/drv/libmine.so", "x")
    image.link(f"{LIBDIR}/libmine.so", "/usr/local/nvidia/drv/libmine.so")

    image.create()

    assert image.linked(f"{LIBDIR}/libmine.so")


def test_a_library_folder_that_leads_out_of_the_image_gets_links_inside(
    image: Image, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    image.glibc()
    target = image.root / LIBDIR[1:]
    target.rename(image.root / "libs")
    target.symlink_to(f"../../../../../..{outside}")
    (image.root / str(outside)[1:]).mkdir(parents=True)
    (image.root / "libs/libc.so.6").rename(image.root / str(outside)[1:] / "libc.so.6")

    image.create()

    assert list(outside.iterdir()) == []


def test_a_library_folder_in_a_volume_gets_no_links(image: Image) -> None:
    outcome = image.glibc().mount(LIBDIR).create()

    assert outcome.view
    assert not image.linked(f"{LIBDIR}/libcuda.so.1")
    assert f"cannot make link {LIBDIR}/libcuda.so and 2 more" in outcome.notes


def nix(image: Image, *env: str) -> Image:
    image.config["process"]["env"] += env
    image.library("/nix/store/abc-glibc/lib/ld-linux-x86-64.so.2", "ld.so", MACHINE)
    return image


def test_an_image_with_its_own_linkers_means_classic_unless_it_has_the_usual_one(
    image: Image,
) -> None:
    before = nix(image).tree()

    assert "a dynamic linker of its own below /nix/store" in image.create().reason
    assert image.tree() == before
    image.link(LOADER, "/nix/store/abc-glibc/lib/ld-linux-x86-64.so.2")
    assert "/nix/store" in image.create().reason
    (image.root / LOADER[1:]).unlink()
    assert image.glibc().create().view


@pytest.mark.parametrize(
    ("value", "fits"),
    [(LIBDIR, False), ("/opt/x:/usr/lib64", False), ("/usr/local/nvidia/lib64", True),
     ("/opt/x:/usr/local/nvidia/lib64/", True), ("", True)],
)  # fmt: skip
def test_without_a_usual_linker_the_search_path_decides(
    image: Image, value: str, *, fits: bool
) -> None:
    image.config["process"]["env"].append(f"LD_LIBRARY_PATH={value}")

    outcome = image.create()

    assert bool(outcome.view) is fits
    assert fits or "no dynamic linker at the usual place" in outcome.reason


def test_a_file_of_the_image_is_never_replaced_by_a_link(image: Image) -> None:
    image.glibc().file("/usr/bin/nvidia-smi", "#!/bin/sh\n")
    image.link(f"{LIBDIR}/libcuda.so.1", "libcuda.so.470.1")

    outcome = image.create()

    assert image.read("/usr/bin/nvidia-smi") == "#!/bin/sh\n"
    assert "cannot make link /usr/bin/nvidia-smi" in outcome.notes
    assert image.linked(f"{LIBDIR}/libcuda.so.1") == OURS


def test_an_empty_file_that_a_mount_left_is_replaced_but_not_under_a_volume(image: Image) -> None:
    image.glibc().file("/usr/bin/nvidia-smi")
    image.create()
    assert image.linked("/usr/bin/nvidia-smi")

    (image.root / "usr/bin/nvidia-smi").unlink()
    outcome = image.mount("/usr/bin").create()

    assert not image.linked("/usr/bin/nvidia-smi")
    assert "cannot make link /usr/bin/nvidia-smi" in outcome.notes


def inodes(image: Image) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in image.root.rglob("*")
    }


def test_a_second_start_changes_nothing(image: Image) -> None:
    compat(image.glibc(), "590.44.01")
    first = image.create(None, None, profile=True)
    before = inodes(image)

    second = image.create(None, None, profile=True)

    assert inodes(image) == before
    assert second.document == first.document


def test_a_second_create_of_an_edited_bundle_is_the_same(image: Image) -> None:
    image.glibc()
    image.config = image.create().document

    again = image.create()

    assert again.view
    assert len([m for m in again.mounts if m.get("source") == VIEW]) == 1


def test_entries_of_an_earlier_driver_are_removed(image: Image) -> None:
    image.glibc().create(table(cache={"": [["libold.so.1", "lib64/libold.so.1"]]}))
    assert image.cached("libold.so.1")

    image.create()

    assert image.cached("libold.so.1") == []
    assert image.cached("libcuda.so.1") == [OURS]


def test_with_a_cache_of_unknown_format_variables_are_used(image: Image) -> None:
    image.glibc().file(CACHE, b"glibc-ld.so.cache9.9")
    image.config["process"]["env"].append("LD_LIBRARY_PATH=/opt/app:/usr/local/nvidia/lib64")

    outcome = image.create()

    assert image.read(CACHE) == "glibc-ld.so.cache9.9"
    assert "LD_LIBRARY_PATH=/opt/app:/usr/local/nvidia/lib64" in outcome.env
    assert "PATH=/usr/bin:/usr/local/nvidia/bin" in outcome.env
    assert "exec sessions lack it: ld.so.cache has an unknown format" in outcome.notes[0]
    assert image.read(DROP_IN)


@pytest.mark.parametrize("destination", ["/etc", "/etc/ld.so.cache"])
def test_a_mount_over_the_cache_means_variables_and_links(image: Image, destination: str) -> None:
    before = {k: v for k, v in image.glibc().tree().items() if k.startswith("etc")}

    outcome = image.mount(destination).create()

    assert outcome.view
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in outcome.env
    assert {k: v for k, v in image.tree().items() if k.startswith("etc")} == before
    assert image.linked(f"{LIBDIR}/libcuda.so.1") == OURS  # which exec sessions find


@pytest.mark.parametrize("destination", ["/etc/ld.so.conf.d", DROP_IN])
def test_a_mount_over_the_drop_in_means_classic(image: Image, destination: str) -> None:
    before = image.glibc().tree()

    outcome = image.mount(destination).create()

    assert outcome.reason == f"{destination} is a mount: a later ldconfig would drop the driver"
    assert image.tree() == before


def test_a_mount_beside_the_drop_in_changes_nothing(image: Image) -> None:
    assert image.glibc().mount("/etc/ld.so.conf.d/mine.conf").create().view


def test_a_root_outside_of_the_bundle_is_not_written_to(image: Image, tmp_path: Path) -> None:
    image.glibc().root.rename(tmp_path / "mine")
    image.config["root"]["path"] = str(tmp_path / "mine")
    before = sorted(tmp_path.rglob("*"))

    outcome = image.create()

    assert outcome.view
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in outcome.env
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("root", "reason"),
    [({"path": "/"}, "host's"), ({}, ""), ({"path": ""}, ""), ({"path": "nowhere"}, ""),
     ({"path": 3}, "")],
    ids=str,
)  # fmt: skip
def test_the_hosts_root_and_a_missing_one_mean_classic(
    image: Image, root: dict[str, Any], reason: str
) -> None:
    image.config["root"] = root

    assert reason in image.create().reason


def test_without_a_view_the_reason_is_in_the_log(image: Image) -> None:
    farm_table = table(view="", why="the driver root is on a noexec mount")

    assert image.glibc().create(farm_table).reason == "the driver root is on a noexec mount"


def test_the_params_mask_needs_exactly_one_hook(image: Image) -> None:
    outcome = image.glibc().create(table(params=True))

    (hook,) = outcome.document["hooks"]["createContainer"]
    assert hook["args"] == [*HOOK["args"], "--mask-params"]


def test_graphics_gets_an_application_profile_without_a_hook_and_compute_none(
    image: Image,
) -> None:
    image.glibc().create(profile=True)
    assert profile.PATH[1:] not in image.tree()

    outcome = image.create(None, ("graphics",), profile=True)

    assert image.read(profile.PATH) == profile.render(1 << 3).decode()
    assert (image.root / profile.PATH[1:]).stat().st_mode & 0o777 == 0o444
    assert "hooks" not in outcome.document
    assert image.create(profile=True).view


HOSTILE = ["cache is a folder", "cache is a FIFO", "/etc leads out", "drop-in is a folder"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_images_change_nothing_outside(image: Image, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    (outside / "ld.so.conf.d").mkdir(parents=True)
    image.glibc()
    if kind == "/etc leads out":
        (image.root / "etc").rename(image.root / "was")
        (image.root / "etc").symlink_to(f"../../../{outside.name}/../../{outside}")
    elif kind == "drop-in is a folder":
        (image.root / DROP_IN[1:]).mkdir(parents=True)
    else:
        (image.root / CACHE[1:]).unlink()
        if kind == "cache is a FIFO":
            os.mkfifo(image.root / CACHE[1:])
        else:
            (image.root / CACHE[1:]).mkdir()

    outcome = image.create()

    assert [path.name for path in outside.rglob("*")] == ["ld.so.conf.d"]
    assert outcome.view or outcome.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_files_belong_to_the_containers_own_root(image: Image) -> None:
    image.glibc()
    for path in [image.root, *image.root.rglob("*")]:
        posix.chown(path, 200000, 300000, follow_symlinks=False)
    image.config["linux"] = {
        "uidMappings": [{"containerID": 1, "hostID": 7, "size": 1},
                        {"containerID": 0, "hostID": 200000, "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": 300000, "size": 65536}],
    }  # fmt: skip

    outcome = image.create(None, None, profile=True)

    assert outcome.view
    assert not [n for n in outcome.notes if "exec sessions" in n]
    owners = {(p.lstat().st_uid, p.lstat().st_gid) for p in image.root.rglob("*")}
    assert owners == {(200000, 300000)}
    assert image.linked("/usr/bin/nvidia-smi")
    assert (os.geteuid(), os.getegid()) == (0, 0)
    image.library(f"{LIBDIR}/libother.so.1", "libother.so.1", MACHINE)
    before = inodes(image)
    image.create(None, None, profile=True)
    assert inodes(image) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_restart_with_another_gpu_changes_the_profile(image: Image) -> None:
    image.glibc().create(None, None, profile=True)
    for path in [image.root, *image.root.rglob("*")]:
        posix.chown(path, 200000, 200000, follow_symlinks=False)
    (image.root / profile.PATH[1:]).write_text("of another GPU")
    mapping = [{"containerID": 0, "hostID": 200000, "size": 1}]
    image.config["linux"] = {"uidMappings": mapping, "gidMappings": mapping}

    image.create(None, None, profile=True)

    assert image.read(profile.PATH) == profile.render(1 << 3).decode()
    assert (image.root / profile.FOLDER[1:]).stat().st_mode & 0o777 == 0o555


def test_a_user_namespace_without_root_means_variables(image: Image) -> None:
    image.config["linux"] = {"uidMappings": [{"containerID": 1000, "hostID": 1000, "size": 1}]}

    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in image.glibc().create().env


def read_only(image: Image) -> Outcome:
    """Create with the root on a read-only mount, in a mount namespace of our own."""
    root = str(image.root)
    KERNEL.mount(root, root, None, MS_BIND)
    KERNEL.mount(None, root, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    return image.create()


@pytest.mark.parametrize(
    ("mount_point", "destination"),
    [("dev", "/dev/.nvct"), ("usr/local/nvidia", "/usr/local/nvidia")],
)
@in_a_mount_namespace
def test_a_read_only_root_gets_the_view_at_its_mount_point_or_below_dev(
    image: Image, mount_point: str, destination: str
) -> None:
    (image.glibc().root / mount_point).mkdir(parents=True)

    outcome = read_only(image)
    assert outcome.view
    assert outcome.view["destination"] == destination
    assert f"LD_LIBRARY_PATH={destination}/lib64" in outcome.env
    assert f"PATH=/usr/bin:{destination}/bin" in outcome.env


@in_a_mount_namespace
def test_a_read_only_root_without_a_dev_of_its_own_means_classic(image: Image) -> None:
    image.config["mounts"] = []

    assert "read-only" in read_only(image.glibc()).reason


def test_a_staged_view_is_not_used_in_user_namespaces(image: Image) -> None:
    mapping = [{"containerID": 0, "hostID": 200000, "size": 65536}]
    image.glibc().config["linux"] = {
        "uidMappings": mapping, "gidMappings": mapping, "namespaces": [{"type": "user"}],
    }  # fmt: skip

    assert "staged" in image.create(table(staged=True)).reason
