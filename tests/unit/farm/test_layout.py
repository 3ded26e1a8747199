# SPDX-License-Identifier: Apache-2.0
import pytest

from nvct.farm import model
from nvct.host.model import Capability, DriverFile, FileKind, Link
from tests.support.host_tree import LIB, VERSION


def file(
    path: str,
    kind: FileKind = "library",
    capability: Capability = "compute",
    links: tuple[Link, ...] = (),
    host_path: str = "",
) -> DriverFile:
    return DriverFile(
        host_path=host_path or f"/host{path}", container_path=path, reason="a test wants it",
        kind=kind, capability=capability, links=links,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "kind", "capability", "expected"),
    [
        (f"/{LIB}/libcuda.so.{VERSION}", "library", "compute", f"lib64/libcuda.so.{VERSION}"),
        (f"/usr/lib64/libcuda.so.{VERSION}", "library", "compute", f"lib64/libcuda.so.{VERSION}"),
        ("/usr/lib/i386-linux-gnu/libcuda.so.1", "library", "compat32", "lib/libcuda.so.1"),
        (f"/{LIB}/vdpau/libvdpau_nvidia.so.1", "library", "video",
         "lib64/vdpau/libvdpau_nvidia.so.1"),
        ("/opt/bin/nvidia-smi", "binary", "utility", "bin/nvidia-smi"),
        (f"/{LIB}/nvidia/xorg/nvidia_drv.so", "module", "graphics",
         "lib64/nvidia/xorg/nvidia_drv.so"),
        ("/usr/lib/xorg/modules/drivers/nvidia_drv.so", "module", "graphics",
         "lib64/xorg/modules/drivers/nvidia_drv.so"),
        ("/etc/vulkan/icd.d/nvidia_icd.json", "config", "graphics",
         "share/vulkan/icd.d/nvidia_icd.json"),
        ("/usr/share/nvidia/nvoptix.bin", "config", "graphics", "share/nvidia/nvoptix.bin"),
        # Of a driver in the folder that the view covers in containers.
        ("/usr/local/nvidia/firmware/gsp.bin", "firmware", "utility", "firmware/gsp.bin"),
        (f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", "firmware", "",
         f"share/firmware/nvidia/{VERSION}/gsp_ga10x.bin"),
    ],
)  # fmt: skip
def test_a_file_has_its_place(
    path: str, kind: FileKind, capability: Capability, expected: str
) -> None:
    (view_file,) = model.view_files([file(path, kind, capability)])

    assert view_file.path == expected


def test_sockets_and_folders_are_not_held() -> None:
    files = [file("/run/nvidia-persistenced/socket", "socket"), file("/tmp/x", "directory")]

    assert model.view_files(files) == []


def test_two_files_of_one_name_both_have_a_place() -> None:
    first, second = file("/etc/a/x.json", "config"), file("/usr/share/a/x.json", "config")

    by_path = {view_file.path: view_file.file for view_file in model.view_files([first, second])}

    assert by_path == {"share/a/x.json": first, "share/usr/share/a/x.json": second}


def test_links_stand_beside_their_files_and_stay_relative() -> None:
    folder = f"/{LIB}"
    name = f"libnvidia-allocator.so.{VERSION}"
    links = (
        Link(target=name, path=f"{folder}/libnvidia-allocator.so.1"),
        Link(target="../libnvidia-allocator.so.1", path=f"{folder}/gbm/nvidia-drm_gbm.so"),
    )

    view_links = model.links(model.view_files([file(f"{folder}/{name}", links=links)]))

    assert [(link.path, link.target) for link in view_links] == [
        ("lib64/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
        ("lib64/libnvidia-allocator.so.1", name),
    ]


def test_a_link_of_a_loaders_folder_leads_into_the_view_from_there() -> None:
    folder = f"/{LIB}/nvidia/current"
    name = f"libvdpau_nvidia.so.{VERSION}"
    link = Link(
        target="../nvidia/current/libvdpau_nvidia.so.1", path=f"/{LIB}/vdpau/libvdpau_nvidia.so.1"
    )

    links = model.links(model.view_files([file(f"{folder}/{name}", links=(link,))]))

    assert links == [
        Link(target="../libvdpau_nvidia.so.1", path="lib64/vdpau/libvdpau_nvidia.so.1")
    ]


@pytest.mark.parametrize(
    "link",
    [
        Link(target="/etc/passwd", path=f"/{LIB}/libx.so"),
        Link(target="../../../etc/passwd", path=f"/{LIB}/libx.so"),
        Link(target="libx.so.1", path="/etc/libx.so"),
    ],
    ids=["absolute", "out of the view", "elsewhere"],
)
def test_a_link_that_would_leave_the_view_is_not_made(link: Link) -> None:
    assert model.links(model.view_files([file(f"/{LIB}/libx.so.1", links=(link,))])) == []


def test_a_link_never_takes_the_place_of_a_file() -> None:
    link = Link(target="libx.so.1", path=f"/{LIB}/libx.so")

    held = model.view_files([file(f"/{LIB}/libx.so.1", links=(link,)), file(f"/{LIB}/libx.so")])

    assert model.links(held) == []
