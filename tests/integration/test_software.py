# SPDX-License-Identifier: Apache-2.0
"""What real software finds of the driver: the same in both layouts (docs/layouts.md has the table).

Compilers, cmake, ctypes and ld.so of this host, and images of each kind of its files, always; the
releases of Debian and Ubuntu with Vulkan, EGL, OpenCL and ffmpeg with NVCT_TESTS_PROFILE=full.
NVCT_SOFTWARE_TABLE names a file that gets all results as JSON, NVCT_SOFTWARE_PEER a folder with the
incumbent's programs, NVCT_SOFTWARE_PACKAGES one that pip has installed numba and cuda-pathfinder in.
"""

import json
import os
import shutil
from typing import Any

import pytest

from tests.integration import software
from tests.integration.conftest import SimulatedNode, simulate
from tests.support import debian_root, images, software_images
from tests.support.host_tree import VERSION

TABLE_ENV = "NVCT_SOFTWARE_TABLE"
CUDA = f"libcuda.so.{VERSION}"
MUST_FIND = {
    "host": ("gcc -lcuda", "gcc PATH/libcuda.so", "ln -s, gcc -L -lcuda", "ldconfig -p",
             "ld.so --inhibit-cache", "after ldconfig"),
    "nix": ("dlopen libcuda.so.1", "dlopen by path libcuda.so.1", "ld.so --inhibit-cache"),
    "rhel": ("dlopen libcuda.so.1", "dlopen libcuda.so"),
    "musl": ("ld-musl --list",) if images.has_musl() else (),
}  # fmt: skip
OPENED = {"vulkaninfo": "libGLX_nvidia.so.0", "eglinfo": "libEGL_nvidia.so.0",
          "clinfo": "libnvidia-opencl.so.1", "ffmpeg": "libcuda.so.1"}  # fmt: skip
WITHOUT_DRIVER = {"bullseye": {"ffmpeg"}}  # it opens no driver library in any layout
USUAL = ("dlopen libcuda.so.1", "dlopen libcuda.so", "dlopen by path libcuda.so.1",
         "ld.so --inhibit-cache")  # fmt: skip
RELEASE = (*MUST_FIND["host"], "python CDLL", "python CDLL of a path", "cmake find_library CUDA")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run every image in every layout, once."""
    names = (software.PEER_ENV, software.PACKAGES_ENV, debian_root.CACHE_ENV,
             "NVCT_TESTS_PROFILE", "HOME")  # fmt: skip
    for node in simulate("h100-mig", tmp_path_factory.mktemp("node")):
        _run(node, {name: os.environ[name] for name in names if name in os.environ})
        path = node.work / software.RESULTS
        if table := os.environ.get(TABLE_ENV):
            shutil.copy(path, table)
        yield json.loads(path.read_text(encoding="utf-8"))


def _run(node: SimulatedNode, env: dict[str, str]) -> None:
    node.run(software.run_all, env)


def of(results: Any, image: str) -> Any:
    found = results[image]
    if "skipped" in found:
        pytest.skip(f"{image} was NOT tested: {found['skipped']}")
    return found


IMAGES = [
    pytest.param(image, marks=[] if image in debian_root.UBUNTU else [pytest.mark.engine])
    for image in software.chosen_images()
]


@pytest.mark.parametrize("way", ["farm", "specification"])
@pytest.mark.parametrize("image", IMAGES)
def test_whatever_is_found_in_layout_classic_is_found_in_layout_farm(
    image: str, way: str, results: Any
) -> None:
    found = of(results, image)
    classic, farm = dict(found["classic"]), dict(found[way])

    assert classic.pop("layout") == "classic"
    is_classic = image == "nix" and way == "farm"
    assert farm.pop("layout") == ("classic" if is_classic else "farm")
    if image in ("rhel", "musl"):  # where this host has libraries is no folder of theirs
        for names in (classic, farm):
            names.pop("file names")
        lost = {name: file for name, file in classic.items() if file not in ("none", farm[name])}
        assert lost == {}
    else:
        assert farm == classic


@pytest.mark.parametrize("way", ["farm", "specification"])
@pytest.mark.parametrize("image", IMAGES)
def test_programs_find_the_driver(image: str, way: str, results: Any) -> None:
    farm = of(results, image)[way]
    default = RELEASE if image in software_images.RELEASES else USUAL

    assert {farm[name] for name in MUST_FIND.get(image, default)} <= {CUDA}
    if image in software_images.RELEASES:
        opened = {program: farm[program].split() for program in OPENED}
        lost = {p for p, name in OPENED.items() if name not in opened[p]}
        assert lost <= WITHOUT_DRIVER.get(image, set())
