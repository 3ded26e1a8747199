# SPDX-License-Identifier: Apache-2.0
"""Every hostile image by every way to a GPU; each function is a process in a simulated node.

A folder of the host is watched: its files, their times of access included, and the host's own
folders stay as they are. The container comes up with its GPU, comes up without it and a reason is
there to read, or fails with a sentence; the golden files say which.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nvct.linux import ldcache
from nvct.linux.kernel import KERNEL
from nvct_sim.elf_writer import shared_object
from tests.hostile.attacks import WITH_HOOK
from tests.hostile.shapes import (
    LDCACHE,
    LINKS,
    LIVE,
    MANY,
    OF_SPEC,
    SHAPES,
    SPEC,
    VIRUS,
    Shape,
    crowd,
)
from tests.integration.farm import farm
from tests.integration.inside import (
    DRIVER_ROOT,
    UUID,
    configure,
    generate,
    make,
    run,
    shim,
)
from tests.integration.inside import SPEC as SPEC_PATH
from tests.integration.prestart import hooked
from tests.support import cdi_engine

ASKS = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
MS_STRICTATIME = 1 << 24  # uapi, linux/mount.h
RESULTS = "hostile.json"
WATCHED = ("/", "/etc", "/etc/ld.so.conf.d", "/dev", "/run", "/usr/local", "/usr/bin", "/sbin")
BY_HOOK = (LINKS, LDCACHE, VIRUS)
"""What a hook after a complete config.json does; the rest is as in the classic layout."""
RIGHT, WITHOUT, FAILED = "right", "without", "failed"
RACER = """
import os, sys
root, host = sys.argv[1:]
while True:
    for name in ("usr/lib", "etc", "usr/local", "usr/bin"):
        place = root + "/" + name
        try:
            os.rename(place, place + "-away")
            os.symlink(host, place)
            os.unlink(place)
            os.rename(place + "-away", place)
        except OSError:
            pass
"""


def in_memory(work: Path) -> Path:
    """Return a folder in memory to work in; ext4 takes a second for each ten thousand links.

    Its path is one of a disk: a container has a /dev/shm of its own.
    """
    folder = work / "memory"
    folder.mkdir()
    KERNEL.mount("memory", str(folder), "tmpfs", 0)
    shutil.copytree(work / "rootfs", folder / "rootfs", symlinks=True)
    return folder


def outside_of(work: Path) -> Path:
    """Make the watched folder: what an image would like to be read or written.

    The root that images are copied from loses its programs' links: most of its files.
    """
    for path in list((work / "rootfs").rglob("*")):
        if path.is_symlink() and path.readlink().name == "busybox" and path.name != "sh":
            path.unlink()
    outside = work / "outside"
    outside.mkdir()
    KERNEL.mount("outside", str(outside), "tmpfs", MS_STRICTATIME)
    library = shared_object(os.uname().machine, soname="libcuda.so.1")
    (outside / "libcuda.so.999.1").write_bytes(library)
    cache = ldcache.merge(None, [("libx.so", "/x/libx.so")], machine=os.uname().machine)
    (outside / "ld.so.cache").write_bytes(cache)
    (outside / "ld.so.conf").write_text("/x\n", encoding="ascii")
    for name in ("lib64", "ld.so.conf.d", "bin"):
        (outside / name).mkdir()
    (work / "crowd").mkdir()
    fd = os.open(work / "crowd", os.O_RDONLY)
    for number in range(MANY):
        os.symlink("x", f"libcuda.so.{number}.1", dir_fd=fd)
    os.close(fd)
    return outside


def state(outside: Path) -> list[object]:
    """Return what must not change on the host."""
    watched_state: list[object] = [
        (path, sorted(os.listdir(path))) for path in WATCHED if _is_dir(path)
    ]
    with os.scandir(outside) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            s = entry.stat(follow_symlinks=False)
            times = (s.st_mtime_ns, s.st_ctime_ns, entry.is_dir() or s.st_atime_ns)
            watched_state.append((entry.name, s.st_ino, s.st_mode, s.st_uid, s.st_size, *times))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [*watched_state, len(file.readlines())]


def _is_dir(path: str) -> bool:
    return Path(path).is_dir()


def classic(work: Path, name: str, env: tuple[str, ...]) -> Path:
    """The shim, with files one by one; the hook only where the shim leaves the root to it."""
    return make(work, name, SCRIPT, env=[*ASKS, *env])


def cdi(work: Path, name: str, env: tuple[str, ...]) -> Path:
    """An engine that reads CDI specs: config.json is complete before the image is looked at."""
    folder = make(work, name, SCRIPT, env=[*ASKS, *env])
    subprocess.run([shim(), "create", "--bundle", folder, "x"], check=True)
    return folder


def spec(work: Path, name: str, env: tuple[str, ...]) -> Path:
    """An engine that reads CDI specs, and a spec that mounts a view."""
    folder = make(work, name, SCRIPT, env=list(env))
    path = folder / "config.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document = cdi_engine.inject(document, SPEC_PATH, ["0"])
    path.write_text(json.dumps(document), encoding="utf-8")
    return folder


def prestart(work: Path, name: str, env: tuple[str, ...]) -> Path:
    """Docker's --gpus, hooks.d."""
    return hooked(work, name, SCRIPT, env=[*ASKS, *env])


SCRIPT = "/busybox timeout -s KILL 2 nvidia-smi -L; exit $?"
"""Ended after a while: who opens a FIFO of the image, as its own linker does, waits for ever."""
FAIL = "#!/bin/sh\nexit 0\n"


def _all(
    work: Path,
    program_kind: str,
    bundle: Callable[[Path, str, tuple[str, ...]], Path],
    program: str | None,
) -> None:
    outside = outside_of(work)
    warm = bundle(work, f"{program_kind}-warm", ())
    run(work, warm, program)  # compiles and stages what later creates use
    results: dict[str, tuple[str, list[str], str]] = {}
    for shape in _shapes(program_kind):
        folder = bundle(work, f"{program_kind}-{shape.name}", shape.env)
        _plant(shape, folder, outside)
        before = state(outside)
        os.chdir(folder / "rootfs")  # modules in the working directory
        result = run(work, folder, program)
        os.chdir("/")
        after = state(outside)
        wrong = [str(x) for x in after if x not in before]
        if (folder / "rootfs/hostile-ran").exists():
            wrong.append("a program of the image ran on its own")
        wrong += [word for word in ("Traceback", "unexpected", "\x1b") if word in result.stderr]
        results[shape.name] = (verdict(result), wrong, result.stderr[-400:])
        for path, maker in shape.puts:
            if maker is crowd:
                (folder / "rootfs" / path).rename(work / "crowd")
        shutil.rmtree(folder)
    (work.parent / RESULTS).write_text(json.dumps(results), encoding="utf-8")


def _shapes(program_kind: str) -> list[Shape]:
    if program_kind == "cdi":
        return [shape for shape in SHAPES if shape.stands_for in BY_HOOK]
    if program_kind == "spec":
        return [*SHAPES, *LIVE, *SPEC]
    return [*SHAPES, *LIVE] if program_kind == "prestart" else list(SHAPES)


def verdict(result: subprocess.CompletedProcess[str]) -> str:
    """Return what became of a container."""
    if result.returncode == 0 and len(UUID.findall(result.stdout)) == 1:
        return RIGHT
    refused = result.returncode != 0 and ": error running hook" in result.stderr
    refused = refused or result.stderr.startswith("nvidia-container-runtime: ")
    return FAILED if refused else WITHOUT


def _plant(shape: Shape, folder: Path, outside: Path) -> None:
    root = folder / "rootfs"
    busybox = next(root.rglob("busybox"))
    os.link(busybox, root / "busybox")  # the shell works, whatever the image does to /usr
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    document["process"]["args"] = ["/busybox", "sh", "-c", SCRIPT]
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    for path, maker in shape.puts:
        target = root / _of_driver(path)
        if target.is_dir() and not target.is_symlink():
            target.rename(target.with_name(f"{target.name}-kept"))
        elif target.exists() or target.is_symlink():
            target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        maker(target, outside)


def _of_driver(path: str) -> str:
    """Return a shape's path with the name that a library of this driver has."""
    head, brace, stem = path.partition("{")
    if not brace:
        return path
    (library,) = Path(DRIVER_ROOT, head).glob(stem.replace("}", ".so.*.*"))
    return head + library.name


def _raced(
    work: Path, bundle: Callable[[Path, str, tuple[str, ...]], Path], program: str | None
) -> None:
    """Swap folders of the image for links while the container is made."""
    outside = work / "outside"
    for number in range(3):
        folder = bundle(work, f"race-{number}", ())
        before, existing = state(outside), set(outside.rglob("*"))
        racer = subprocess.Popen(
            [sys.executable, "-c", RACER, str(folder / "rootfs"), str(outside)]
        )
        try:
            result = run(work, folder, program)
        finally:
            racer.kill()
            racer.wait()
        _take_mount_points(folder, outside, existing)
        assert _without_times(state(outside)) == _without_times(before), result
        assert "Traceback" not in result.stderr, result


def _take_mount_points(folder: Path, outside: Path, existing: set[Path]) -> None:
    """Remove what runc itself made while it was raced: empty mount points, and nothing else.

    Before 1.1.14 and 1.2.0-rc.3 it makes the mount point of any entry of config.json, its own
    /proc included, by a path that a racing process can lead elsewhere (CVE-2024-45310).
    """
    mounts = json.loads((folder / "config.json").read_text(encoding="utf-8"))["mounts"]
    tails: set[str] = set()
    for mount in mounts:
        words = mount["destination"].strip("/").split("/")
        tails.update(
            "/".join(words[a:b]) for a in range(1, 3) for b in range(a + 1, len(words) + 1)
        )
    for path in sorted(set(outside.rglob("*")) - existing, reverse=True):
        if str(path.relative_to(outside)) in tails:
            if path.is_dir():
                with contextlib.suppress(OSError):  # not empty: it stays
                    path.rmdir()
            elif path.stat().st_size == 0:
                path.unlink()


def _without_times(watched_state: list[object]) -> list[object]:
    """Return a state without the times of folders, which a mount point in them changes."""
    return [
        s[:5] if isinstance(s, tuple) and len(s) > 5 and s[-1] is True else s
        for s in watched_state
    ]


def by_classic(work: Path) -> None:
    """Every shape by the shim, classic layout."""
    work = in_memory(work)
    configure(work, layout="classic")
    _all(work, "classic", classic, None)
    _raced(work, classic, None)


def by_farm(work: Path) -> None:
    """Every shape by the shim, farm layout."""
    work = in_memory(work)
    farm(work)
    _all(work, "farm", classic, None)
    _raced(work, classic, None)


def by_cdi(work: Path) -> None:
    """Every shape by an engine's own CDI edits, and the hook in them."""
    work = in_memory(work)
    noop = work / "noop"
    noop.write_text(FAIL, encoding="utf-8")
    noop.chmod(0o755)
    configure(work, f'[nvidia-container-runtime]\nruntimes = ["{noop}"]\n{WITH_HOOK}')
    _all(work, "cdi", cdi, shutil.which("runc"))
    _raced(work, cdi, shutil.which("runc"))


def by_spec(work: Path) -> None:
    """Every shape by a spec in layout farm, and its hook."""
    work = in_memory(work)
    configure(work)
    mounts = generate()["containerEdits"]["mounts"]
    assert mounts[0]["containerPath"] == f"/{OF_SPEC}"
    _all(work, "spec", spec, shutil.which("runc"))
    _raced(work, spec, shutil.which("runc"))


def by_prestart(work: Path) -> None:
    """Every shape by the prestart hook."""
    work = in_memory(work)
    configure(work)
    _all(work, "prestart", prestart, shutil.which("runc"))
    _raced(work, prestart, shutil.which("runc"))
