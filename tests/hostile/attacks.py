# SPDX-License-Identifier: Apache-2.0
"""Hostile images in real containers on a simulated node; each function runs in its own process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.integration.inside import configure, make, run

GPU = "NVIDIA_VISIBLE_DEVICES=0"
EVIL = """
import os
open('/hostile-was-here', 'w')
open('{marker}', 'w')
"""


def _swap(root: Path, path: str, make_one: Callable[[Path], object]) -> None:
    target = root / path
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    elif target.exists() or target.is_symlink():
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    make_one(target)


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
    result = run(work, folder)
    assert not marker.exists(), result
    assert not (root / "hostile-was-here").exists()
    assert "nvidia-cdi-hook" not in result.stderr, result
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hooks = [h for kind in document["hooks"].values() for h in kind]
    assert hooks
    assert all(h["env"] for h in hooks)


def read_only_and_volumes(work: Path) -> None:
    """A read-only root runs; a link into a volume changes nothing there and is reported."""
    configure(work, layout="classic")
    folder = make(work, "ro", "ldconfig -p | grep -c libcuda.so.1", env=[GPU])
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    document["root"]["readonly"] = True
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    result = run(work, folder)
    assert (result.returncode, result.stdout) == (0, "1\n"), result
    volume = work / "volume"
    volume.mkdir()
    mount = {"destination": "/vol", "type": "bind", "source": str(volume), "options": ["rbind"]}
    folder = make(work, "vol", "true", env=[GPU], mounts=[mount])
    (folder / "rootfs/vol").mkdir()
    _swap(folder / "rootfs", "etc", lambda p: p.symlink_to("/vol"))
    result = run(work, folder)
    # runc itself follows the link for the mount points of the classic layout, inside the
    # container's namespace: empty files, none of them nvct's.
    created = [path for path in volume.rglob("*") if path.is_file()]
    assert {path.stat().st_size for path in created} <= {0}, created
    assert not [path for path in created if path.name.startswith(("ld.so", "00-nvct"))], created
    assert result.returncode != 0
    assert "symbolic link into another mount" in result.stderr, result


def requests(work: Path) -> None:
    """A request that runc reads otherwise than nvct fails; a container without a request never fails."""
    configure(work)
    folder = make(work, "fold", "ls /dev", env=[GPU])
    path = folder / "config.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"process"', '"Process"'), encoding="utf-8")
    result = run(work, folder)
    assert result.returncode == 1, result
    assert result.stderr.count("\n") == 1
    for number, env in enumerate((
        ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_X=\x1b[2J\u202e"],
        ["NVIDIA_REQUIRE_CUDA=" + "(" * 5000],
        ["NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION="],
        ["X=\\u004eVIDIA_VISIBLE_DEVICES=all"],
    )):  # fmt: skip
        quiet = make(work, f"quiet{number}", "ls /dev | grep -c nvidia", env=env)
        result = run(work, quiet)
        assert (result.stdout, result.stderr) == ("0\n", ""), result
    for number, value in enumerate(
        ("\x1b[2Jall", "all\n", "0\u202e", "\u0660", "all,0\x00", "0;1")
    ):
        bad = make(work, f"bad{number}", "true", env=[f"NVIDIA_VISIBLE_DEVICES={value}"])
        result = run(work, bad)
        if value == "all\n":
            continue  # a blank around a word
        assert result.returncode == 1, result
        assert result.stderr.count("\n") == 1
        assert result.stderr.rstrip("\n").isprintable()
