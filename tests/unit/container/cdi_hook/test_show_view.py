# SPDX-License-Identifier: Apache-2.0
"""The driver's files of a mounted view, as programs of the container find them."""

import os

import pytest

from nvct.linux.constants import MS_BIND
from nvct.linux.kernel import KERNEL
from tests.support.containers import Container
from tests.support.forked import in_mount_namespace
from tests.unit.container.cdi_hook.test_apply import loaded_in

VIEW = "/.nvct/driver"
LIBRARIES = "/usr/lib64"
APPLY = (
    "apply",
    f"--view={VIEW}",
    "--view-folder=/usr/lib/host",
    "--view-library=lib64/libcuda.so.1",
    "--view-link=lib64/libcuda.so.580.1",
    "--view-link=bin/nvidia-smi",
    "--view-file=share/icd.json::/etc/vulkan/icd.d/nvidia.json",
    "--host-driver-version=550.1.1",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def image(container: Container) -> Container:
    """An image with glibc in /usr/lib64, and a view of a driver."""
    container.file("/lib64/ld-linux-x86-64.so.2")
    container.file(f"{LIBRARIES}/libc.so.6")
    container.library("/opt/stub/libcuda.so.1", "libcuda.so.1", origin="stub")
    container.library(f"{VIEW}/lib64/libcuda.so.580.1", "libcuda.so.1", origin="driver")
    container.link(f"{VIEW}/lib64/libcuda.so.1", "libcuda.so.580.1")
    container.file(f"{VIEW}/bin/nvidia-smi", "program")
    container.file(f"{VIEW}/share/icd.json", "driver's")
    return container


@needs_root
def test_a_program_loads_the_views_library(image: Container) -> None:
    assert image.hook(*APPLY) == 0

    assert loaded_in(image, "libcuda.so.1") == "driver"


def test_programs_find_links_where_they_look(image: Container) -> None:
    assert image.hook(*APPLY) == 0

    tree = image.tree()
    assert tree["usr/lib64/libcuda.so.1"] == f"-> {VIEW}/lib64/libcuda.so.1"
    assert tree["usr/lib64/libcuda.so.580.1"] == f"-> {VIEW}/lib64/libcuda.so.580.1"
    assert tree["usr/bin/nvidia-smi"] == f"-> {VIEW}/bin/nvidia-smi"
    assert tree["etc/vulkan/icd.d/nvidia.json"] == f"-> {VIEW}/share/icd.json"
    assert f"{VIEW}/lib64" in tree["etc/ld.so.conf.d/00-nvct.conf"]


def test_an_image_without_the_usual_linker_has_links_where_the_host_has_libraries(
    image: Container,
) -> None:
    (image.root / "lib64/ld-linux-x86-64.so.2").unlink()

    assert image.hook(*APPLY) == 0

    assert image.tree()["usr/lib/host/libcuda.so.1"] == f"-> {VIEW}/lib64/libcuda.so.1"


@needs_root
def test_the_images_compatibility_library_comes_first(image: Container) -> None:
    image.library("/usr/local/cuda/compat/libcuda.so.575.1", "libcuda.so.1", origin="compat")

    assert image.hook(*APPLY) == 0

    assert loaded_in(image, "libcuda.so.1") == "compat"


def test_a_link_of_an_earlier_start_goes(image: Container) -> None:
    assert image.hook(*APPLY) == 0

    assert image.hook(*[word for word in APPLY if "nvidia-smi" not in word]) == 0

    assert "usr/bin/nvidia-smi" not in image.tree()


def test_a_file_of_the_image_is_covered_and_stays(image: Container) -> None:
    own = image.file("/etc/vulkan/icd.d/nvidia.json", "image's")

    def covered() -> None:
        assert image.hook(*APPLY) == 0
        assert own.read_text() == "driver's"
        with pytest.raises(OSError, match="Read-only"):
            own.write_text("changed")

    in_mount_namespace(covered)
    assert own.read_text() == "image's"


def test_nothing_is_written_into_a_volume(
    image: Container, capfd: pytest.CaptureFixture[str]
) -> None:
    volume = image.bundle / "volume"
    volume.mkdir()
    place = image.root / "etc/vulkan/icd.d"
    place.mkdir(parents=True)

    def mounted() -> None:
        KERNEL.mount(str(volume), str(place), None, MS_BIND)
        assert image.hook(*APPLY) == 0

    in_mount_namespace(mounted)
    assert list(volume.iterdir()) == []
    assert "/etc/vulkan/icd.d is a mount in the container" in capfd.readouterr().err


@pytest.mark.parametrize("path", [f"{VIEW}/lib64/libcuda.so.1", f"{VIEW}/lib64", VIEW])
def test_a_view_that_is_not_there_fails_the_create(
    image: Container, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (image.root / path.lstrip("/")).rename(image.bundle / "gone")
    before = image.tree()

    assert image.hook(*APPLY) == 1

    assert image.tree() == before
    assert capsys.readouterr().err == (
        f"nvidia-cdi-hook: the view of the driver at {VIEW} has no lib64/libcuda.so.1; run nvct "
        "refresh and nvct publish on the host [host]\n"
    )


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--view-library=../../etc/shadow", "'../../etc/shadow' leads out of the view"),
        ("--view-link=/etc/shadow", "'/etc/shadow' leads out of the view"),
        ("--view-file=a::b::c", "--view-file 'a::b::c' is not FILE::PATH"),
        ("--view=driver", "--view is 'driver', not an absolute path"),
    ],
)
def test_a_malformed_option_fails_the_create(
    image: Container, word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = image.tree()

    assert image.hook(*APPLY, word) == 1

    assert image.tree() == before
    assert message in capsys.readouterr().err


def test_a_directory_where_the_driver_has_a_file_fails_the_create(
    image: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    (image.root / "etc/vulkan/icd.d/nvidia.json").mkdir(parents=True)

    assert image.hook(*APPLY) == 1
    assert "the image has a directory /etc/vulkan/icd.d/nvidia.json" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["/", "/etc", "../../..", "/proc/self/root", "/nowhere"])
def test_links_of_the_image_lead_nowhere_else(image: Container, target: str) -> None:
    """Nothing outside of the root is written, wherever an image's folders lead."""
    outside = image.bundle / "outside"
    outside.mkdir()
    for folder in ("etc/vulkan", "usr/bin"):
        image.link(f"/{folder}", target)

    image.hook(*APPLY)

    assert list(outside.iterdir()) == []
    assert not (image.bundle / "nvidia-smi").exists()
    assert not os.path.lexists("/icd.d/nvidia.json")
