# SPDX-License-Identifier: Apache-2.0
"""Checks that hold under every engine, in either layout."""

import re

from nvct_sim import node_changes, tree
from tests.engines.engines import Done, Engine, Want

LAYOUTS = ("classic", "farm")
VIEW = "/usr/local/nvidia"
UUID = re.compile(r"UUID: (GPU-[0-9a-f-]+)\)")
LISTED = "ldconfig -p | sed -n 's/.*libcuda.so.1 .*=> //p' | head -n 1"
NODES = "ls /dev | grep -c 'nvidia[0-9]'"
WRITE = r"""
cut -d' ' -f5 /proc/self/mountinfo | grep -E 'nvidia|cuda|/dev/.nvct' | while read -r place; do
  echo mount
  find "$place" -type f | while read -r f; do
    if (: >> "$f") 2>/dev/null; then echo "WRITABLE $f"; fi
  done
  find "$place" -type d | while read -r d; do
    if touch "$d/x" 2>/dev/null; then echo "WRITABLE $d"; fi
  done
  if mount -o remount,rw "$place" 2>/dev/null; then echo "REMOUNTED $place"; fi
  if rm "$place" 2>/dev/null; then echo "REMOVED $place"; fi
done
rm -f /usr/local/nvidia/lib64/libcuda.so.1 /usr/local/nvidia/bin/nvidia-smi 2>/dev/null
nvidia-smi -L
"""
NEW = "590.48.01"


def libraries(layout: str) -> str:
    """Return the folder of the driver's libraries in a container."""
    return f"{VIEW}/lib64" if layout == "farm" else "/usr/lib/"


def has_one_gpu(completed: Done, layout: str) -> None:
    """Assert that nvidia-smi, then LISTED, found one GPU and libcuda in the layout's folder."""
    assert completed.returncode == 0, completed
    assert len(UUID.findall(completed.stdout)) == 1, completed
    last_line = completed.stdout.splitlines()[-1]
    assert last_line.startswith(libraries(layout)), completed
    assert last_line.endswith("/libcuda.so.1"), completed


def gives_what_is_asked_for(engine: Engine, layout: str) -> None:
    completed = engine.run(f"{NODES}; nvidia-smi -L; {LISTED}")
    has_one_gpu(completed, layout)
    assert completed.stdout.startswith("1\n"), completed
    if layout == "farm":
        assert "layout farm at" in engine.decided()
        mounts = engine.run(f"grep -c ' {VIEW}' /proc/self/mountinfo")
        assert engine.staged or mounts.stdout == "1\n", mounts
    else:
        assert "without a hook" in engine.decided()
    every = engine.run("nvidia-smi -L", Want(env=("NVIDIA_VISIBLE_DEVICES=all",)))
    assert len(UUID.findall(every.stdout)) == 8, every
    bare = engine.run(NODES, Want(env=()))
    assert bare.stdout == "0\n", bare
    bad = engine.run("true", Want(env=("NVIDIA_VISIBLE_DEVICES=9",)))
    assert bad.returncode != 0
    assert "no device '9'" in bad.stderr, bad


def reaches_exec_and_outlives_a_restart(engine: Engine, layout: str) -> None:
    name = engine.keep()
    script = f"nvidia-smi -L; {LISTED}"
    has_one_gpu(engine.exec(name, script), layout)
    has_one_gpu(engine.exec(name, f"ldconfig; {script}"), layout)
    second_run = engine.restart(name)
    assert second_run.returncode == 0, second_run
    has_one_gpu(engine.exec(name, script), layout)
    engine.remove(name)


def serves_read_only_roots(engine: Engine, layout: str) -> None:
    completed = engine.run(
        f"touch /x 2>/dev/null && echo W; nvidia-smi -L; {LISTED}", Want(read_only=True)
    )
    has_one_gpu(completed, layout)
    assert "W\n" not in completed.stdout


def leaves_a_volume_alone(engine: Engine, layout: str) -> None:
    volume = engine.box.work / f"volume-{layout}-{engine.name()}"
    volume.mkdir(exist_ok=True)
    completed = engine.run(f"nvidia-smi -L; {LISTED}", Want(volumes={str(volume): "/usr/local"}))
    has_one_gpu(completed, "classic")
    assert list(volume.iterdir()) == []
    if layout == "farm":
        assert "layout classic: /usr/local is a mount" in engine.decided()


def leaves_an_images_file_alone(engine: Engine, layout: str) -> None:
    completed = engine.run(f"cat {VIEW}; nvidia-smi -L; {LISTED}", Want(image="taken:test"))
    has_one_gpu(completed, "classic")
    assert completed.stdout.startswith("mine\n"), completed
    if layout == "farm":
        assert f"layout classic: the image has a file {VIEW}" in engine.decided()


def lets_nobody_write(engine: Engine, _layout: str) -> None:
    """Assert that no mount of ours can be written to."""
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all")
    completed = engine.run(WRITE, Want(env=env))
    lines = completed.stdout.splitlines()
    assert set(lines[:-1]) == {"mount"}, completed
    assert len(UUID.findall(lines[-1])) == 1, completed


def follows_an_upgrade(engine: Engine, layout: str) -> None:
    """Assert that the loaded driver's view is used until the module changes; then the new one."""
    node = tree.load(engine.node.tree)  # as another engine's upgrade has left it
    old = node.installed
    new = engine.node.installed if old == NEW else NEW
    folder = f"{VIEW}/lib64" if layout == "farm" else "/usr/lib/*-linux-gnu"
    script = f"cd {folder}; ls libcuda.so.*.*; nvidia-smi -L; {LISTED}"
    before = engine.run(script)
    has_one_gpu(before, layout)
    assert f"libcuda.so.{old}\n" in before.stdout
    name = engine.keep()
    upgraded = node_changes.upgrade(node, new)  # on disk; the old module is still loaded
    between = engine.run(script)
    if layout == "farm":
        has_one_gpu(between, layout)
        assert f"libcuda.so.{old}\n" in between.stdout
    else:
        assert between.returncode != 0, "libraries that do not fit the module were injected"
    has_one_gpu(engine.exec(name, f"nvidia-smi -L; {LISTED}"), layout)
    engine.remove(name)
    node_changes.reload_module(upgraded)
    after = engine.run(script)
    has_one_gpu(after, layout)
    assert f"libcuda.so.{new}\n" in after.stdout
