# SPDX-License-Identifier: Apache-2.0
"""Hostile images and a prestart hook, inside a simulated node; each function is a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration import inside
from tests.integration.inside import configure
from tests.integration.prestart import CAPABILITIES, GPU, edit, hooked, runc

VICTIMS = ("/etc", "/dev", "/", "/run/nvidia")


def _state(work: Path) -> list[object]:
    """Return what must not change outside of a container."""
    outside = work / "outside"
    seen: list[object] = [sorted(os.listdir(path)) for path in VICTIMS]
    for folder, folders, files in os.walk(outside):
        for name in [".", *folders, *files]:
            s = os.lstat(os.path.join(folder, name))
            seen.append((folder, name, s.st_ino, s.st_mode, s.st_uid, s.st_size, s.st_mtime_ns))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [*seen, len(file.readlines())]


def hostile(work: Path) -> None:
    """Links of an image that lead out of it change nothing there; the container runs or fails.

    A link in the place of /dev is left out: runc 1.1.5 itself makes links where it leads to.
    """
    configure(work)
    outside = work / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine", encoding="utf-8")
    host, file = str(outside), str(outside / "file")
    up = "../" * 20
    libraries = f"usr/lib/{os.uname().machine}-linux-gnu"
    (libcuda,) = Path(inside.DRIVER_ROOT, libraries).glob("libcuda.so.*.*")
    shapes: dict[str, str | None] = {
        "usr/bin/nvidia-smi": file, "usr/bin": host, "usr": f"{up}{host[1:]}",
        libraries: host, f"{libraries}/{libcuda.name}": f"{up}{file[1:]}",
        f"{libraries}/libcuda.so.1": file, "run": host, "lib/firmware": "/",
        "etc": "/proc/self/cwd", "etc/ld.so.cache": file, "etc/ld.so.conf.d": f"/proc/1/root{host}",
        f"{libraries}/{libcuda.name.replace('cuda', 'nvidia-ml')}": None,
        "usr/local": "/proc/self/root", "run/nvidia-persistenced": "/dev/../../../..",
        "var/run": f"/proc/self/fd/../root{host}",
    }  # fmt: skip
    ran = 0
    for number, (path, target) in enumerate(shapes.items()):
        folder = hooked(work, f"h{number}", "", env=[GPU, CAPABILITIES])
        os.link(next((folder / "rootfs").rglob("busybox")), folder / "rootfs/busybox")
        edit(folder, process={**edit(folder)["process"], "args": ["/busybox", "true"]})
        place = folder / "rootfs" / path
        if place.is_dir() and not place.is_symlink():
            place.rename(place.with_name(f"{place.name}-kept"))
        elif place.exists() or place.is_symlink():
            place.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        if target is None:
            place.mkdir()
        else:
            place.symlink_to(target)
        before = _state(work)
        said = runc(work, folder)
        after = _state(work)
        assert after == before, (path, set(map(str, after)) ^ set(map(str, before)))
        assert "Traceback" not in said.stderr, said
        print(path, said.returncode, said.stderr.strip()[-250:])
        ran += said.returncode == 0
    assert (outside / "file").read_text(encoding="utf-8") == "mine"
    assert ran > 5, ran


RACER = """
import os, sys
root, host = sys.argv[1:]
while True:
    for name in ("usr/bin", "usr/lib", "etc"):
        place = root + "/" + name
        try:
            os.rename(place, place + "-away")
            os.symlink(host, place)
            os.unlink(place)
            os.rename(place + "-away", place)
        except OSError:
            pass
"""


def racing(work: Path) -> None:
    """A process that swaps the image's folders for links while the hook works gets nothing out."""
    configure(work)
    outside = work / "outside"
    outside.mkdir()
    for number in range(6):
        folder = hooked(work, f"race{number}", "true", env=[GPU, CAPABILITIES])
        before = _state(work)
        racer = subprocess.Popen(
            [sys.executable, "-c", RACER, str(folder / "rootfs"), str(outside)]
        )
        said = runc(work, folder)
        racer.kill()
        racer.wait()
        assert _state(work) == before, said
        assert "Traceback" not in said.stderr, said
        print(said.returncode, said.stderr[-200:])
