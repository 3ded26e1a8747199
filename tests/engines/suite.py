# SPDX-License-Identifier: Apache-2.0
"""The container engines of a Debian or Ubuntu release, unpacked into a folder: nothing is installed.

mmdebstrap downloads, verifies and unpacks the packages and their dependencies; it runs no
maintainer script. A tree is kept outside the checkout, by release, packages and month, as releases
that are not frozen change. The keys for Ubuntu's packages are in a Debian package.
"""

import datetime as dt
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support import mmdebstrap

CACHE_ENV = "NVCT_TEST_TREES"
"""Variable that names the folder of the trees, instead of one in the user's cache."""
MIRRORS = {
    "debian": "http://deb.debian.org/debian",
    "ubuntu": "http://archive.ubuntu.com/ubuntu",
}
COMPONENTS = {"debian": "main", "ubuntu": "main universe"}
ENGINES = "containerd,runc,crun,docker.io,iptables,podman,conmon"
KUBERNETES = "etcd-server,containernetworking-plugins"
"""Packages that a kubelet and an API server need besides an engine."""
ROOTLESS = "rootlesskit,uidmap"
"""What a rootless dockerd needs besides."""
KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
SUITES = {
    "bookworm": f"{ENGINES},tini",
    "trixie": f"{ENGINES},{KUBERNETES},docker-cli,ubuntu-keyring",
    "forky": f"{ENGINES},{KUBERNETES},docker-cli,{ROOTLESS},docker-compose",
    "resolute": ENGINES,
}
"""Packages of each release: Docker 20.10, 26.1, 28 and 29; containerd 1.6, 1.7, 2.1 and 2.2;
Podman 4.3, 5.4, 5.8 and 5.7."""
UBUNTU = ("resolute",)
CALLERS = {
    "podman5": ("trixie", "podman,runc,crun,conmon,catatonit,iptables"),
    "podman6": ("experimental", "podman,runc,crun,conmon,catatonit,iptables"),
    "apptainer": ("sid", "apptainer,squashfs-tools"),
    "buildx": ("forky", "docker.io,docker-cli,docker-buildx,containerd,runc,iptables"),
    "incus": ("trixie", "incus-base"),
    "lxc": ("trixie", "lxc,runsc"),
}
"""Trees of programs for tests/callers: their release, and their packages."""
IN_SBIN = ("dockerd",)
"""Programs that Debian has in /usr/sbin, which is searched first."""
REQUIRED = ("bookworm", "trixie")
"""Releases that do not change any more: CI fails if one of them is not available."""
KEPT_S = 86400.0
"""Seconds for which an outdated tree is kept, as its programs may still run."""
MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
UNPACK_TIMEOUT_S = 300.0


def tree(suite: str) -> Path:
    """Return the folder with a release's engines; make it if missing.

    Raises:
        ContainerNotPossibleError: the folder does not exist and cannot be made here.
    """
    folder = _cache()
    folder.mkdir(parents=True, exist_ok=True)
    month = dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m")
    release, packages = CALLERS.get(suite) or (suite, SUITES[suite])
    digest = hashlib.sha256(packages.encode()).hexdigest()[:8]
    folder_path = folder / f"{suite}-{month}-{digest}"
    with (folder / f".{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder_path.is_dir():
            aside = folder / f".{suite}"
            shutil.rmtree(aside, ignore_errors=True)
            _unpack(release, packages, aside)
            for old in folder.glob(f"{suite}-*"):
                if old.stat().st_ctime < time.time() - KEPT_S:
                    shutil.rmtree(old)
            aside.rename(folder_path)
    return folder_path


def _cache() -> Path:
    named = os.environ.get(CACHE_ENV)
    return Path(named) if named else Path.home() / ".cache/nvct-tests/engines"


def _unpack(suite: str, packages: str, folder: Path) -> None:
    options = [
        "--variant=extract", f"--hook-dir={MERGED_USR}", f"--include={packages}",
        # Mirrors of a release that still changes may be older than its Valid-Until.
        "--aptopt=Acquire::Check-Valid-Until false",
    ]  # fmt: skip
    of = "ubuntu" if suite in UBUNTU else "debian"
    if of == "ubuntu":
        options.append(f"--keyring={ubuntu_keyring()}")
    more: tuple[str, ...] = ()
    if suite == "experimental":  # is no whole release
        options.append(f'--aptopt=APT::Default-Release "{suite}"')
        suite, more = "sid", (suite,)
    mmdebstrap.make(
        suite, folder, options, mirror=mirror(of), components=COMPONENTS[of],
        timeout_s=UNPACK_TIMEOUT_S, more=more,
    )  # fmt: skip
    _finish(folder)


def ubuntu_keyring() -> Path:
    """Return the keyring of Ubuntu's releases: this host's, or from a Debian package.

    Raises:
        ContainerNotPossibleError: as `tree`.
    """
    own_path = Path(KEYRING)
    return own_path if own_path.exists() else tree("trixie") / KEYRING.lstrip("/")


def _finish(folder: Path) -> None:
    """Make the links of maintainer scripts, and links that hide the host's programs."""
    for name in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            link = folder / f"usr/sbin/{name}{suffix}"
            if not link.exists():
                link.symlink_to("xtables-nft-multi")
    for name in IN_SBIN:
        link = folder / f"usr/sbin/{name}"
        if not link.exists():
            link.symlink_to(f"../bin/{name}")


def mirror(of: str = "debian") -> str:
    """Return the mirror of Debian or Ubuntu that this machine uses, or the default one."""
    return next(_mirrors(of), MIRRORS[of])


def _mirrors(of: str) -> Iterator[str]:
    try:
        output = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages"],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
    except OSError:
        return
    for line in output.splitlines():
        if re.search(rf"/{of}/?$", line):
            yield line
