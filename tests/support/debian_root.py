# SPDX-License-Identifier: Apache-2.0
"""A small Debian or Ubuntu in a folder, to install packages into: made once, used as a lower layer.

CI requires Debian. It does not require Ubuntu, as not every machine can reach its archive.
"""

import datetime as dt
import fcntl
import os
import shutil
import tempfile
import zlib
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.engines import suite as engines
from tests.support import mmdebstrap
from tests.support.once import made_once
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
INCLUDE = (
    "python3-click", "python3-yaml", "python3-jsonschema", "python3-rich", "python3-tomlkit",
    "runc",
)  # fmt: skip
INCLUDE_OLD = {"jammy": ("python3-tomli",)}
"""For Python before 3.11."""
TIMEOUT_S = 360.0
UBUNTU = ("bionic", "focal", "jammy", "noble", "resolute")
"""18.04, 20.04, 22.04, 24.04 and 26.04."""
FULL = os.environ.get("NVCT_TESTS_PROFILE") == "full"
UBUNTU_NOT_TESTED = "Ubuntu was NOT tested"
CACHE_ENV = "NVCT_TEST_ROOTS"
"""Variable that names the folder of the roots, instead of one in the user's cache."""


def root(release: str, *more: str, bare: bool = False) -> Path:
    """Return a folder with a minimal Debian or Ubuntu and the dependencies of nvct.

    Raises:
        ContainerNotPossibleError: the folder does not exist and cannot be made here.
    """
    named = os.environ.get(CACHE_ENV)
    cache = Path(named) if named else Path.home() / ".cache/nvct-tests/roots"
    cache.mkdir(parents=True, exist_ok=True)
    month = dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m")
    wanted = () if bare else (*INCLUDE, *INCLUDE_OLD.get(release, ()))
    kind = "bare" if bare else f"{zlib.crc32(' '.join(wanted).encode()):08x}"  # new dependencies
    found = cache / "-".join((release, kind, month, *more))
    with (cache / f".{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.is_dir():
            aside = cache / f".{release}"
            shutil.rmtree(aside, ignore_errors=True)
            _make(release, aside, (*wanted, *more), bare=bare)
            aside.rename(found)
    return found


def releases(
    *debian: str, ubuntu: tuple[str, ...] = (), more: tuple[str, ...] = ()
) -> list[ParameterSet]:
    """Return parameters of tests.

    Args:
        debian: names of releases that CI must not skip.
        ubuntu: names of releases that CI may skip.
        more: additional releases with NVCT_TESTS_PROFILE=full.
    """
    if FULL:
        ubuntu += more
    must = [pytest.param(release, marks=pytest.mark.engine) for release in debian]
    return must + [pytest.param(release) for release in ubuntu]


def _make(release: str, folder: Path, packages: tuple[str, ...], *, bare: bool) -> None:
    options = [
        f"--variant={'extract' if bare else 'minbase'}", f"--include={','.join(packages)}"
    ]  # fmt: skip
    if release not in UBUNTU:
        mmdebstrap.make(release, folder, options, mirror=engines.mirror(), timeout_s=TIMEOUT_S)
        return
    with tempfile.TemporaryDirectory(prefix="nvct-keys-") as keys:
        # apt reads them as a separate user, without access to /root.
        os.chmod(keys, 0o755)  # noqa: S103
        keyring = shutil.copy(engines.ubuntu_keyring(), keys)
        mmdebstrap.make(
            release, folder, [*options, f"--keyring={keyring}"],
            mirror=engines.mirror("ubuntu"), timeout_s=TIMEOUT_S, components="main universe",
            pockets=("", "-updates"),
        )  # fmt: skip


def packages(folders: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of this checkout; skip if the build tools are missing."""
    return made_once(folders, "debs", _build_packages)


def _build_packages(out: Path) -> None:
    script = REPOSITORY / "packaging/deb/build.sh"
    # The best compression would take longer than all the rest.
    env = {**os.environ, "DPKG_DEB_COMPRESSOR_LEVEL": "0"}
    done = captured(["sh", script, out], env=env)
    if "Unmet build dependencies" in done.stderr or "dpkg-buildpackage: not found" in done.stderr:
        pytest.skip("no debhelper, dh-python or Python packages to build with")
    assert done.returncode == 0, done.stderr
