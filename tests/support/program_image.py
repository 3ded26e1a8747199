# SPDX-License-Identifier: Apache-2.0
"""The image of this source (packaging/image), built again only if its inputs change.

Its base and wheels are kept outside the checkout; a new base is made each month.
"""

import datetime as dt
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import suite
from tests.support import bundled
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "packaging/image"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "nvct-tests", "image")
KEPT = 2
TIMEOUT_S = 350
TAGS = (
    "toolkit", "agent", "device-plugin", "dcgm-exporter", "gpu-feature-discovery",
    "mig-manager", "gpu-kubelet-plugin",
)  # fmt: skip


def archive() -> Path:
    """Return the path of the OCI archive; skip if its inputs can't be had here."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("no mmdebstrap here")
    bundle = bundled.tree()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        base_path, wheels_path = base(), wheels()
        place = CACHE / f"built-{_digest(bundle, base_path)}"
        if not place.is_dir():
            aside = CACHE / "aside"
            shutil.rmtree(aside, ignore_errors=True)
            build(base_path, bundle, wheels_path, aside)
            aside.rename(place)
        os.utime(place)
        old = sorted(CACHE.glob("built-*"), key=lambda path: path.stat().st_mtime)
        for path in old[:-KEPT]:
            shutil.rmtree(path)
    return next(place.glob("*.oci.tar"))


def build(base_path: Path, bundle: Path, wheels_path: Path, out: Path) -> None:
    """Run build.py without an index of packages."""
    _run(
        sys.executable, str(SOURCES / "build.py"), f"--base={base_path}", f"--bundle={bundle}",
        f"--wheels={wheels_path}", f"--out={out}",
    )  # fmt: skip


def base() -> Path:
    """Return the tar of the base; made if it is missing."""
    month = dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m")
    script = SOURCES / "base.sh"
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    path = CACHE / f"base-{month}-{digest}.tar"
    if not path.exists():
        _run("sh", str(script), str(path), suite.mirror())
    return path


def wheels() -> Path:
    """Return the folder of the agent's wheels; downloaded if it is missing."""
    requirements = SOURCES / "requirements.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:8]
    path = CACHE / f"wheels-{digest}-{sys.version_info.minor}"
    if not path.is_dir():
        aside = CACHE / "wheels.part"
        shutil.rmtree(aside, ignore_errors=True)
        _run(
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
            "--require-hashes", f"--dest={aside}", f"--requirement={requirements}",
        )  # fmt: skip
        aside.rename(path)
    return path


def _run(*command: str) -> None:
    done = captured(command, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]


def _digest(bundle: Path, base_path: Path) -> str:
    whole = hashlib.sha256(f"{bundle.parent.name} {base_path.name}".encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            whole.update(f"{path.relative_to(SOURCES)}\n".encode() + path.read_bytes())
    return whole.hexdigest()[:16]
