# SPDX-License-Identifier: Apache-2.0
"""An ordinary user's containers on a simulated node: what is run inside the node, in one process.

By the shim and by Podman's own CDI, of an image and with the user namespaces that people choose.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from nvct import paths
from nvct.container import leases
from tests.integration import matrix, rootless
from tests.support.processes import captured

RESULTS = "rootless.json"
RUNTIMES = ("runc", "crun")
SPACES = {
    "usual": [],
    "keep-id": ["--userns=keep-id"],
    "root-of-keep-id": ["--userns=keep-id", "--user=0"],
    "auto": ["--userns=auto"],
    "nomap": ["--userns=nomap"],
}
NOT_HERE, NO_HOOK_STARTS = -1, -2
"""In the place of an exit status: not even a container without a GPU starts, or with any hook."""
LOOK = r"""
echo "== who"; id -u
echo "== nodes"; stat -c '%n %a' /dev/nvidia*
echo "== smi"; nvidia-smi -L 2>&1
echo "== ldconfig"; ldconfig -p 2>&1 | grep -c libcuda.so.1
echo "== search"; echo "$LD_LIBRARY_PATH"
echo "== writable"
while read -r a b c d target rest; do
  case $target in
    /usr/local/nvidia*) find "$target" -type f;;
    *nvidia*|*cuda*) [ -f "$target" ] && echo "$target";;
  esac
done < /proc/self/mountinfo | while read -r f; do (: >> "$f") 2>&- && echo "$f"; done
echo "== end"
"""


def run_all(work: Path) -> None:
    """Run every case; the results are JSON, by name: status, output and errors."""
    lab = matrix._Lab(work)
    found: dict[str, object] = {"uuids": lab.uuids}
    try:
        user = rootless.User(matrix.HOME / "user", matrix.HOME / "site", lab.python)
    except rootless.NotPossibleError as error:
        raise SystemExit(f"SKIP: {error}") from error
    archive = _image()
    for runtime in RUNTIMES:
        found.update(_run(user, runtime, archive))
        found[f"explain-{runtime}"] = _explained(user, runtime)
        found[f"free-{runtime}"] = _free(user, runtime)
    user.leave()
    (work / RESULTS).write_text(json.dumps(found, indent=1), encoding="utf-8")


def _image() -> Path:
    """Return an image's root as an archive that the user may read."""
    archive = matrix.HOME / "image.tar"
    folder = matrix.HOME / "images/debian"
    subprocess.run(["tar", "-C", folder, "--numeric-owner", "-cf", archive, "."], check=True)
    archive.chmod(0o644)
    return archive


def _run(user: rootless.User, runtime: str, archive: Path) -> dict[str, object]:
    program = shutil.which(runtime)
    if program is None:
        raise SystemExit(f"SKIP: {runtime} is not installed")
    made = user.call(runtime, "import", str(archive), "image:test")
    if made.returncode:
        raise SystemExit(f"SKIP: no rootless Podman here: {made.stderr[-300:]}")
    told = captured([program, "--version"], check=True)
    found: dict[str, object] = {runtime: told.stdout}
    device, _ = matrix.DEVICES
    ways = {
        "shim": (str(user.shim), [f"--env=NVIDIA_VISIBLE_DEVICES={device}"]),
        "cdi": (program, [f"--device=nvidia.com/gpu={device}"]),  # layout classic
        "cdi-farm": (program, [f"--device=nvidia.com/farm={device}"]),
    }
    rootless.CONFIG.parent.mkdir(exist_ok=True)
    rootless.CONFIG.write_text(matrix._config(runtime, "auto"), encoding="utf-8")
    for space, options in SPACES.items():
        for way, (path, asks) in ways.items():
            usual = ["--runtime", path, "run", "--rm", "--network=none", *options]
            done = user.call(runtime, *usual, *asks, "image:test", "/bin/sh", "-c", LOOK)
            status, said = done.returncode, done.stderr
            if status:
                status, said = _without_gpu(user, runtime, usual) or (status, said)
            found[f"{way}-{runtime}-{space}"] = (status, done.stdout, said)
    return found


def _explained(user: rootless.User, runtime: str) -> list[str]:
    """Return what the user's `nvct explain` prints about a running container, by name and id."""
    link = user.home / ".local/share/containers/storage"
    os.makedirs(link.parent, exist_ok=True)
    link.symlink_to(user.home / f"store-{runtime}")
    device, _ = matrix.DEVICES
    asks = [f"--env=NVIDIA_VISIBLE_DEVICES={device}", "--env=NVIDIA_DRIVER_CAPABILITIES=utility"]
    words = ["--runtime", str(user.shim), "run", "--detach", "--name=mine", "--network=none"]
    done = user.call(runtime, *words, *asks, "image:test", "/bin/sleep", "60")
    if done.returncode:
        raise SystemExit(f"SKIP: no rootless container stays: {done.stderr[-300:]}")
    nvct = str(user.shim.with_name("nvct"))
    try:
        id_ = done.stdout.strip()
        return [
            user.do(nvct, *w).stdout for w in (("explain", "mine"), ("explain", id_), ("log",))
        ]
    finally:
        user.call(runtime, "rm", "--force", "--time=0", "mine")
        link.unlink()


def _free(user: rootless.User, runtime: str) -> dict[str, object]:
    """Return what two containers got that ask for any free GPU, and the owners of their leases."""
    folder = Path(paths.LEASE_DIR)
    is_new = not folder.exists()
    os.close(leases.open_folder(str(folder)))  # in the host's /run: Podman keeps its namespaces
    try:
        words = ["--runtime", str(user.shim), "run", "--detach", "--network=none"]
        asks = ["--env=NVIDIA_VISIBLE_DEVICES=free:1", "--env=NVIDIA_DRIVER_CAPABILITIES=utility"]
        found: dict[str, object] = {}
        for name in ("one", "two"):
            sleeps = ["image:test", "/bin/sleep", "60"]
            done = user.call(runtime, *words, f"--name={name}", *asks, *sleeps)
            if done.returncode:
                raise SystemExit(f"no container has a free GPU: {done.stderr[-600:]}")
            got = user.call(runtime, "exec", name, "nvidia-smi", "-L")
            found[name] = got.stdout
        found["leases"] = _leases(folder)
        for name in ("one", "two"):
            user.call(runtime, "rm", "--force", "--time=0", name)
        found["after"] = _leases(folder)
        return found
    finally:
        if is_new:
            shutil.rmtree(folder)


def _leases(folder: Path) -> list[tuple[str, int]]:
    """Return the device of each lease that counts, and the owner, as the host's root sees them."""
    fd = leases.open_folder(str(folder))
    try:
        return sorted((one.device, one.uid) for one in leases.all_in(fd) if one.counts)
    finally:
        os.close(fd)


def _without_gpu(user: rootless.User, runtime: str, usual: list[str]) -> tuple[int, str] | None:
    """Return why a container cannot run that has nothing to do with nvct; None if it can."""
    words = [*usual, "image:test", "/bin/true"]
    for status, options in ((NOT_HERE, []), (NO_HOOK_STARTS, [f"--hooks-dir={_any_hook()}"])):
        done = user.call(runtime, *options, *words)
        if done.returncode:
            return status, done.stderr
    return None


def _any_hook() -> Path:
    """Return a folder that gives every container a hook, which does nothing."""
    folder = matrix.HOME / "hooks"
    folder.mkdir(exist_ok=True)
    hook = {
        "version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": True},
        "stages": ["createContainer"],
    }  # fmt: skip
    (folder / "any.json").write_text(json.dumps(hook), encoding="utf-8")
    return folder
