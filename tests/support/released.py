# SPDX-License-Identifier: Apache-2.0
"""A release of small packages, assembled as `make release` does it, and a web server for it."""

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.version import __version__ as version
from tests.kubernetes.rendering import find_helm
from tests.support.once import made_once
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
NAMES = ("nvct", "nvct-base", "nvct-mig-manager", "nvct-operator-extensions", "nvct-sim")
NAMES_OF_RPMS = (*NAMES[1:], "nvct-bundle")
KEY = "nvct tests"
URL = "http://release.invalid"
"""Of the release that `made` makes."""
FORMER = os.environ.get("NVCT_TESTS_FORMER")
"""A checkout of the former version, in which `make image` was run."""
PLAIN = (f"nvct-{version}-x86_64.oci.tar", f"nvct-{version}-x86_64.spdx.json")
CONTROL = "Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: nvct\nDescription: none\n"
SPEC = "Name: nvct\nVersion: {version}\nRelease: 1\nSummary: none\nLicense: none\nBuildArch: noarch\n%description\n%files\n"
OF_SPEC = "%package {part}\nSummary: none\n%description {part}\n%files {part}\n"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *words: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the folder on this machine; the value is its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def keyring() -> Iterator[dict[str, str]]:
    """Make a gpg of its own with one secret key; the value is the environment that names it."""
    for name in ("gpg", "createrepo_c", "dpkg-scanpackages"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name}")
    # Short, as the agent has a socket in it.
    with tempfile.TemporaryDirectory(
        prefix="nvct-gpg-", dir="/tmp", ignore_cleanup_errors=True
    ) as home:
        env = {**os.environ, "GNUPGHOME": home}
        words = ("--quick-generate-key", KEY, "ed25519", "sign", "never")
        captured(["gpg", "--batch", "--passphrase", "", *words], env=env, check=True)
        yield env
        captured(["gpgconf", "--kill", "all"], env=env)


def made(factory: pytest.TempPathFactory) -> Path:
    """Return what `make release` makes of this checkout; once for a run of pytest."""
    return made_once(factory, "release", _make) / "www"


def _make(out: Path) -> None:
    words = (
        "DIRTY=1",
        f"KEY={KEY}",
        f"URL={URL}",
        f"OUT={os.path.relpath(out / 'www', REPOSITORY)}",
    )
    with keyring() as env:
        done = captured(["make", "release", *words], cwd=REPOSITORY, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def packages(folder: Path) -> None:
    """Write small packages and files with the names that the targets of make give them."""
    folder.mkdir()
    if shutil.which("rpmbuild") is None:
        pytest.skip("no rpmbuild")
    native = captured(["dpkg", "--print-architecture"], check=True).stdout.strip()
    for name in NAMES:
        architecture = "all" if name == "nvct-mig-manager" else native
        control = CONTROL.format(name=name, version=version, architecture=architecture)
        (folder / "tree/DEBIAN").mkdir(parents=True)
        (folder / "tree/DEBIAN/control").write_text(control)
        captured(["dpkg-deb", "-b", folder / "tree", folder], check=True)
        shutil.rmtree(folder / "tree")
    spec = folder / "nvct.spec"
    parts = "".join(OF_SPEC.format(part=name.removeprefix("nvct-")) for name in NAMES_OF_RPMS)
    spec.write_text(SPEC.format(version=version) + parts)
    captured(["rpmbuild", "-bb", "--define", f"_topdir {folder}/rpm", spec], check=True)
    for path in (folder / "rpm/RPMS/noarch").iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(folder / "rpm")
    spec.unlink()
    info = f"nvct-{version}.dist-info"
    with zipfile.ZipFile(folder / f"nvct-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nvct\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    for name in PLAIN:
        (folder / name).write_text(name)
    metadata = folder / "others-1.0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Name: others\nVersion: 1.0\n")
    for name in (f"nvct-{version}-x86_64.tar.gz", f"nvct-{version}.tar.gz"):
        with tarfile.open(folder / name, "w:gz") as archive:
            archive.add(metadata, "lib/others-1.0.dist-info/METADATA")
    shutil.rmtree(metadata.parent)


def assembled(
    dist: Path, out: Path, env: dict[str, str], url: str = "http://127.0.0.1:1", *,
    key: str = KEY, helm: str | None = None, former: Path | None = None,
    source: Path = REPOSITORY, check: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Assemble a release of what is in dist, in a folder that is named as make names it: relative."""
    return captured(
        [
            sys.executable, source / "packaging/release/build.py", "--dist", dist,
            "--out", os.path.relpath(out), "--key", key, "--url", url, "--helm", helm or find_helm(),
            *(("--former", former) if former else ()), *(("--check",) if check else ()),
        ],
        env=env,
    )  # fmt: skip
