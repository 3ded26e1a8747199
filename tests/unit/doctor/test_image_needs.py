# SPDX-License-Identifier: Apache-2.0
"""What an unpacked image lacks so that the driver's libraries could be loaded in it."""

import json
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvct.cli.main import program
from nvct.doctor import image_needs
from nvct.doctor.model import Part
from nvct.errors import UsageError
from nvct.host.model import DriverFile, Inventory
from nvct_sim.elf_writer import MACHINES, shared_object
from tests.unit.doctor.broken_nodes import node_of, write

MACHINE = platform.machine()
TRIPLET = MACHINES[MACHINE].triplet if MACHINE in MACHINES else ""
FOLDERS = (f"/usr/lib/{TRIPLET}", f"/lib/{TRIPLET}", "/usr/lib64", "/lib64")
GLIBC = next((Path(one) for one in FOLDERS if Path(one, "libm.so.6").exists()), None)


def library(
    home: Path, name: str, *needed: str, capability: str = "compute", source: Path | None = None
) -> DriverFile:
    """Make a library of the driver that needs some others."""
    path = home / "driver" / name
    path.parent.mkdir(exist_ok=True)
    if source:
        shutil.copy(source, path)
    else:
        path.write_bytes(shared_object(MACHINE, soname=name, needed=needed))
    return DriverFile(
        host_path=str(path), container_path=f"/usr/lib64/{name}", reason="test", kind="library",
        capability=capability, soname=name, needed=needed,  # type: ignore[arg-type]
    )  # fmt: skip


def image(home: Path, *names: str, folder: str = "usr/lib64") -> Path:
    """Make an image with some libraries."""
    for name in names:
        path = write(home, f"image/{folder}/{name}")
        path.write_bytes(shared_object(MACHINE, soname=name))
    (home / "image").mkdir(exist_ok=True)
    return home / "image"


def look(home: Path, *files: DriverFile) -> Part:
    inventory = Inventory(driver_version="580.1", files=files)
    return image_needs.check(node_of(home, image=str(home / "image"), discovery=inventory))


def said(part: Part) -> list[tuple[str, str]]:
    return [(one.severity, one.evidence) for one in part.findings]


def test_an_image_that_has_all_is_fine(tmp_path: Path) -> None:
    image(tmp_path, "libc.so.6", "libm.so.6")
    files = (
        library(tmp_path, "libcuda.so.1", "libc.so.6", "libm.so.6", "libnvidia-x.so.1"),
        library(tmp_path, "libnvidia-x.so.1", "libc.so.6"),
    )

    part = look(tmp_path, *files)

    assert (part.health, part.findings) == ("ok", ())
    assert part.lines[0].endswith("2 of its libraries were checked")


def test_what_cuda_lacks_is_an_error_and_what_graphics_lacks_a_note(tmp_path: Path) -> None:
    image(tmp_path, "libc.so.6")
    files = (
        library(tmp_path, "libcuda.so.1", "libc.so.6", "librt.so.1"),
        library(tmp_path, "libGLX_nvidia.so.0", "libX11.so.6", capability="graphics"),
        library(tmp_path, "libnvidia-pkcs11.so.1", "libcrypto.so.1.1"),
    )

    assert said(look(tmp_path, *files)) == [
        ("error", "the image has no librt.so.1: libcuda.so.1 needs it (compute)"),
        ("note", "the image has no libX11.so.6: libGLX_nvidia.so.0 needs it (graphics)"),
    ]


def test_a_fault_is_shown_before_many_notes(tmp_path: Path) -> None:
    image(tmp_path, "libc.so.6")
    needed = [f"libx{n}.so" for n in range(9)]
    write(tmp_path, "image/etc/OpenCL/vendors/a.icd", "libnvidia-opencl.so.9\n")

    part = look(tmp_path, library(tmp_path, "libGLX_nvidia.so.0", *needed, capability="graphics"))

    assert part.lines[0].startswith("/etc/OpenCL/vendors/a.icd of the image names")


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/{}-linux-gnu"])
def test_an_image_for_another_architecture_is_named_so(folder: str, tmp_path: Path) -> None:
    other = "aarch64" if MACHINE == "x86_64" else "x86_64"
    path = write(tmp_path, f"image/{folder.format(other)}/libc.so.6")
    path.write_bytes(shared_object(other, soname="libc.so.6"))

    ((_, evidence),) = said(look(tmp_path, library(tmp_path, "libcuda.so.1", "libc.so.6")))

    assert evidence.endswith(f"image is an image for {other}, but this host is {MACHINE}")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "it has no C library"),
        ({"lib/ld-musl-x86_64.so.1": ""}, "its C library is musl"),
        ({"usr/lib64/libc.so.6": "GROUP ( /lib/libc.so.6 )"}, "it has no C library"),
    ],
)
def test_an_image_without_glibc(files: dict[str, str], words: str, tmp_path: Path) -> None:
    for path, text in files.items():
        write(tmp_path, f"image/{path}", text)
    (tmp_path / "image").mkdir(exist_ok=True)

    ((severity, evidence),) = said(look(tmp_path, library(tmp_path, "libcuda.so.1", "libc.so.6")))

    assert severity == "error"
    assert words in evidence


@pytest.mark.skipif(GLIBC is None, reason="no glibc at a known place")
def test_a_c_library_that_is_too_old_names_the_version(tmp_path: Path) -> None:
    assert GLIBC is not None
    cuda = library(tmp_path, "libcuda.so.1", "libc.so.6", source=GLIBC / "libm.so.6")
    folder = image(tmp_path)
    (folder / "usr/lib64").mkdir(parents=True)
    shutil.copy(GLIBC / "libc.so.6", folder / "usr/lib64/libc.so.6")
    assert look(tmp_path, cuda).findings == ()

    shutil.copy(GLIBC / "libm.so.6", folder / "usr/lib64/libc.so.6")
    ((severity, evidence),) = said(look(tmp_path, cuda))

    assert severity == "error"
    assert evidence.startswith("libc.so.6 of the image does not define GLIBC_")


def test_folders_of_the_linkers_configuration_are_searched(tmp_path: Path) -> None:
    image(tmp_path, "libc.so.6", folder="opt/lib")
    write(tmp_path, "image/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n# x\n")
    write(tmp_path, "image/etc/ld.so.conf.d/a.conf", "/opt/lib\n/opt/lib\n")

    assert look(tmp_path, library(tmp_path, "libcuda.so.1", "libc.so.6")).findings == ()


def test_links_stay_in_the_image(tmp_path: Path) -> None:
    folder = image(tmp_path, "libc.so.6", folder="opt/lib")
    (folder / "usr").mkdir()
    (folder / "usr/lib64").symlink_to("/opt/lib")

    assert look(tmp_path, library(tmp_path, "libcuda.so.1", "libc.so.6")).findings == ()


def test_an_icd_of_another_driver_in_the_image(tmp_path: Path) -> None:
    image(tmp_path, "libc.so.6")
    named = {"ICD": {"library_path": "libEGL_nvidia.so.535"}}
    path = "usr/share/glvnd/egl_vendor.d/10_nvidia.json"
    write(tmp_path, f"image/{path}", json.dumps(named))
    write(tmp_path, "image/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n")
    write(tmp_path, "image/etc/OpenCL/vendors/pocl.icd", "libpocl.so.2\n")
    write(tmp_path, "image/etc/vulkan/icd.d/x.json", "[" * 100_000)
    given = library(tmp_path, "libnvidia-opencl.so.1", "libc.so.6")

    assert said(look(tmp_path, given)) == [
        (
            "warning",
            (
                f"/{path} of the image names libEGL_nvidia.so.535, which containers do not get on "
                "this host"
            ),
        )
    ]


def test_a_hostile_image_is_no_crash(tmp_path: Path) -> None:
    folder = image(tmp_path, "libc.so.6")
    (folder / "etc").mkdir()
    os.mkfifo(folder / "etc/ld.so.conf")
    (folder / "lib64").symlink_to("lib64")
    (folder / "usr/lib").mkdir()
    (folder / "usr/lib/a\udcff\n.so").symlink_to("/dev/zero")
    (folder / "usr/lib/librt.so.1").symlink_to("../../../../../../../../dev/zero")
    os.mkfifo(folder / "usr/lib/libm.so.6")
    huge = folder / "usr/lib/libdl.so.2"
    huge.write_bytes(shared_object(MACHINE, soname="x")[:80])
    os.truncate(huge, 1 << 40)
    (folder / "etc/vulkan").symlink_to("/etc")
    needed = ("libc.so.6", "librt.so.1", "libm.so.6", "libdl.so.2", "a\udcff\n.so")

    part = look(tmp_path, replace(library(tmp_path, "libnvidia-x.so.1"), needed=needed))

    assert {one.severity for one in part.findings} == {"unknown"}


def test_a_loop_of_configuration_files_ends(tmp_path: Path) -> None:
    image(tmp_path, "libc.so.6")
    write(tmp_path, "image/etc/ld.so.conf", "include /etc/ld.so.conf\ninclude /etc/*\n")

    assert look(tmp_path, library(tmp_path, "libcuda.so.1", "libc.so.6")).findings == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all")
def test_an_image_that_may_not_be_read_is_not_blamed(tmp_path: Path) -> None:
    folder = image(tmp_path, "libc.so.6")
    (folder / "usr").chmod(0)

    part = look(tmp_path, library(tmp_path, "libcuda.so.1", "libc.so.6"))

    (folder / "usr").chmod(0o755)
    assert [severity for severity, _ in said(part)] == ["unknown"]


def test_without_an_image_or_a_driver_nothing_is_looked_at(tmp_path: Path) -> None:
    driver = Inventory(driver_version="1")
    assert image_needs.check(node_of(tmp_path, discovery=driver)).health == "absent"
    assert image_needs.check(node_of(tmp_path, image=str(tmp_path))).health == "absent"
    image = str(tmp_path / "no")
    gone = image_needs.check(node_of(tmp_path, image=image, discovery=driver))
    assert [one.severity for one in gone.findings] == ["unknown"]


def test_an_image_that_no_check_would_look_at_is_refused(tmp_path: Path) -> None:
    words = ["doctor", "--only", "mig", "--image", str(tmp_path)]

    done = CliRunner().invoke(program("nvct"), words)

    assert isinstance(done.exception, UsageError) or done.exit_code == 2
    assert "--image needs the check image" in f"{done.output}{done.exception}"
