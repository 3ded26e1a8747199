# SPDX-License-Identifier: Apache-2.0
"""The rpms, by the host's rpm in a Debian: installed, used, erased; one of them brings its own Python."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from nvct.errors import ContainerNotPossibleError
from tests.integration import bundles, packages
from tests.integration.conftest import SimulatedNode
from tests.support import bundled, debian_root
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
RPM_STEPS = r"""
work=$1
nvidia-ctk cdi check
ls /usr/lib/nvct/hot.bin || ls /usr/lib/nvct/bundle
ls /usr/share/man/man1/nvidia-ctk.1.gz
nvidia-container-runtime --root /run/runc-test run --bundle "$work/gpu" gpu
nvct sim create left --profile t4
"""


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild")
    out = tmp_path_factory.mktemp("rpms")
    archive = bundled.archive()
    (out / archive.name).symlink_to(archive)
    build = REPOSITORY / "packaging/rpm/build.sh"
    done = captured(["sh", build, out])
    assert done.returncode == 0, done.stderr
    (out / "whole").mkdir()
    (rpm,) = out.glob("nvct-bundle-*.rpm")
    rpm.rename(out / "whole" / rpm.name)
    return out


def rpms_came_and_went(root: Path, rpms: Path, simulated: SimulatedNode) -> dict[str, Any]:
    """Install, use and erase the rpms of a folder; return what was seen."""
    steps = {packages.STEPS_ENV: RPM_STEPS}
    env = {packages.ROOT_ENV: str(root), packages.DEBS_ENV: str(rpms), **steps}
    simulated.run(packages.rpm_installed, env)
    said = (simulated.work / "said").read_text(encoding="utf-8")
    assert "1 spec, 29 devices: no difference from the host" in said
    assert len(re.findall(r"^GPU 0: NVIDIA H100.*UUID: GPU-", said, re.MULTILINE)) == 1
    seen: dict[str, Any] = json.loads((simulated.work / "seen").read_text(encoding="utf-8"))
    assert seen["left"] == []
    assert seen["kept"] == [packages.CONFIG]
    assert not seen["spec"]
    return seen


@pytest.mark.engine
@pytest.mark.slow
def test_rpms_come_and_go(rpms: Path, simulated: SimulatedNode) -> None:
    try:
        root = debian_root.root("bookworm")
    except ContainerNotPossibleError as error:
        pytest.skip(str(error))
    seen = rpms_came_and_went(root, rpms, simulated)
    assert "nvct sim needs the package nvct-sim" in seen["missing"]
    released = {f"{when}-{version}" for when in ("pre", "post") for version in (1, 2)}
    over = {"end-1": "", "end-2": ""}
    assert seen["driver"] == dict.fromkeys(released, "driver-release.json") | over


@pytest.mark.engine
@pytest.mark.slow
def test_the_rpm_with_a_python_of_its_own_comes_and_goes(
    rpms: Path, simulated: SimulatedNode, tmp_path: Path
) -> None:
    # glibc 2.31, and no Python. busybox's sh would take its own rm, and its find cannot delete.
    root = bundles.bare(tmp_path, "bullseye", "coreutils", "dash", "findutils", "runc")
    (root / "bin/sh").unlink()
    (root / "bin/sh").symlink_to("dash")
    for name in ("cmp", "sed", "umount"):
        (root / "bin" / name).symlink_to("busybox")
    rpms_came_and_went(root, rpms / "whole", simulated)


@pytest.mark.engine
@pytest.mark.slow
def test_rpmlint_has_nothing_to_say(rpms: Path) -> None:
    if shutil.which("rpmlint") is None:
        pytest.skip("no rpmlint")
    config = REPOSITORY / "packaging/rpm/rpmlint.toml"
    command = ["rpmlint", "-c", str(config), *map(str, sorted(rpms.glob("*.rpm")))]
    done = captured(command)
    assert " 0 errors, 0 warnings" in done.stdout, done.stdout
