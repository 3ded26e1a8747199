# SPDX-License-Identifier: Apache-2.0
"""Hostile images in real containers on a simulated node; each function is a process of its own."""

from __future__ import annotations

import json
import shutil

from tests.integration.inside import configure, make, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GPU = "NVIDIA_VISIBLE_DEVICES=0"
EVIL = """
import os
open('/hostile-was-here', 'w')
open('{marker}', 'w')
"""


def _swap(root: Path, path: str, make_one: Callable[[Path], object]) -> None:
    place = root / path
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif place.exists() or place.is_symlink():
        place.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    make_one(place)


WITH_HOOK = '[nvct]\nlayout = "classic"\nparams-mask = "true"\n'


def environment(work: Path) -> None:
    """Neither the environment of a container nor the files in its root run code in the hook."""
    configure(work, WITH_HOOK)
    marker = work / "marker"
    evil = EVIL.format(marker=marker)
    folder = make(
        work, "env", "echo up",
        env=[
            GPU, "LD_PRELOAD=/proc/self/cwd/poc.so", "LD_LIBRARY_PATH=/proc/self/cwd",
            "PYTHONPATH=/proc/self/cwd:.", "PYTHONSTARTUP=json.py", "PYTHONHOME=/proc/self/cwd",
            "PYTHONINSPECT=1", "PYTHONMALLOC=debug", "NVCT_RUN_DIR=/proc/self/cwd",
            "PATH=/proc/self/cwd:.:/bin", "LC_ALL=../../../etc", "NVIDIA_CTK_DEBUG=true",
        ],
    )  # fmt: skip
    root = folder / "rootfs"
    for name in ("json", "os", "posix", "sitecustomize", "nvct", "marshal", "encodings", "errno"):
        (root / f"{name}.py").write_text(evil, encoding="utf-8")
    (root / "poc.so").write_bytes(b"\x7fELF")
    said = run(work, folder)
    assert not marker.exists(), said
    assert not (root / "hostile-was-here").exists()
    assert "nvidia-cdi-hook" not in said.stderr, said
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hooks = [h for kind in document["hooks"].values() for h in kind]
    assert hooks
    assert all(h["env"] for h in hooks)


def read_only_and_volumes(work: Path) -> None:
    """A read-only root runs; a link into a volume changes nothing there and says so."""
    configure(work, layout="classic")
    folder = make(work, "ro", "ldconfig -p | grep -c libcuda.so.1", env=[GPU])
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    document["root"]["readonly"] = True
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    said = run(work, folder)
    assert (said.returncode, said.stdout) == (0, "1\n"), said
    volume = work / "volume"
    volume.mkdir()
    mount = {"destination": "/vol", "type": "bind", "source": str(volume), "options": ["rbind"]}
    folder = make(work, "vol", "true", env=[GPU], mounts=[mount])
    (folder / "rootfs/vol").mkdir()
    _swap(folder / "rootfs", "etc", lambda p: p.symlink_to("/vol"))
    said = run(work, folder)
    # runc itself follows the link for the mount points of the classic layout, inside the
    # container's namespace: empty files, none of them nvct's.
    made = [path for path in volume.rglob("*") if path.is_file()]
    assert {path.stat().st_size for path in made} <= {0}, made
    assert not [path for path in made if path.name.startswith(("ld.so", "00-nvct"))], made
    assert said.returncode != 0
    assert "symbolic link into another mount" in said.stderr, said


def requests(work: Path) -> None:
    """What runc reads otherwise than we do fails; what asks for nothing never does."""
    configure(work)
    folder = make(work, "fold", "ls /dev", env=[GPU])
    path = folder / "config.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"process"', '"Process"'), encoding="utf-8")
    said = run(work, folder)
    assert said.returncode == 1, said
    assert said.stderr.count("\n") == 1
    for number, env in enumerate((
        ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_X=\x1b[2J\u202e"],
        ["NVIDIA_REQUIRE_CUDA=" + "(" * 5000],
        ["NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION="],
        ["X=\\u004eVIDIA_VISIBLE_DEVICES=all"],
    )):  # fmt: skip
        quiet = make(work, f"quiet{number}", "ls /dev | grep -c nvidia", env=env)
        said = run(work, quiet)
        assert (said.stdout, said.stderr) == ("0\n", ""), said
    for number, value in enumerate(
        ("\x1b[2Jall", "all\n", "0\u202e", "\u0660", "all,0\x00", "0;1")
    ):
        bad = make(work, f"bad{number}", "true", env=[f"NVIDIA_VISIBLE_DEVICES={value}"])
        said = run(work, bad)
        if value == "all\n":
            continue  # a blank around a word
        assert said.returncode == 1, said
        assert said.stderr.count("\n") == 1
        assert said.stderr.rstrip("\n").isprintable()
