# SPDX-License-Identifier: Apache-2.0
"""An ordinary user's containers on a simulated node: what is run inside the node, in one process.

By the shim and by Podman's own CDI, of an image and with the user namespaces that people choose.
"""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.integration import matrix, rootless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

RESULTS = "rootless.json"
RUNTIMES = ("runc", "crun")
SPACES = {
    "usual": [],
    "keep-id": ["--userns=keep-id"],
    "root-of-keep-id": ["--userns=keep-id", "--user=0"],
    "auto": ["--userns=auto"],
    "nomap": ["--userns=nomap"],
}
NOT_HERE = -1
"""In the place of an exit status: not even a container without a GPU starts."""
LOOK = r"""
echo "== who"; id -u
echo "== nodes"; stat -c '%n %a' /dev/nvidia*
echo "== smi"; nvidia-smi -L 2>&1
echo "== ldconfig"; ldconfig -p 2>&1 | grep -c libcuda.so.1
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
    user.leave()
    (work / RESULTS).write_text(json.dumps(found, indent=1), encoding="utf-8")


def _image() -> Path:
    """Return an image's root as an archive that the user may read."""
    archive = matrix.HOME / "image.tar"
    folder = matrix.HOME / "images/debian"
    subprocess.run(["tar", "-C", folder, "--numeric-owner", "-cf", archive, "."], check=True)
    archive.chmod(0o644)
    return archive


def _run(user: rootless.User, runtime: str, archive: Path) -> dict[str, tuple[int, str, str]]:
    program = shutil.which(runtime)
    if program is None:
        raise SystemExit(f"SKIP: {runtime} is not installed")
    made = user.call(runtime, "import", str(archive), "image:test")
    if made.returncode:
        raise SystemExit(f"SKIP: no rootless Podman here: {made.stderr[-300:]}")
    found = {}
    device, _ = matrix.DEVICES
    ways = {
        "shim": (str(user.shim), [f"--env=NVIDIA_VISIBLE_DEVICES={device}"]),
        "cdi": (program, [f"--device=nvidia.com/gpu={device}"]),
    }
    rootless.CONFIG.parent.mkdir(exist_ok=True)
    rootless.CONFIG.write_text(matrix._config(runtime, "auto"), encoding="utf-8")
    for space, options in SPACES.items():
        for way, (path, asks) in ways.items():
            usual = ["--runtime", path, "run", "--rm", "--network=none", *options]
            done = user.call(runtime, *usual, *asks, "image:test", "/bin/sh", "-c", LOOK)
            status, said = done.returncode, done.stderr
            if status:
                bare = user.call(runtime, *usual, "image:test", "/bin/sh", "-c", ":")
                status, said = (NOT_HERE, bare.stderr) if bare.returncode else (status, said)
            found[f"{way}-{runtime}-{space}"] = (status, done.stdout, said)
    return found
