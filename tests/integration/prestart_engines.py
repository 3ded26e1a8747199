# SPDX-License-Identifier: Apache-2.0
"""The prestart hook as other engines call it, inside a simulated node; each function is a process."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from nvct.paths import CONFIG_ENV
from tests.integration.inside import PROBE, UUID, configure, leave_hybrid_cgroups, make, run
from tests.integration.prestart import GPU, HOOK, edit, hooked
from tests.support.processes import captured


def crun(work: Path) -> None:
    """The same by crun."""
    leave_hybrid_cgroups()
    found = shutil.which("crun")
    if not found:
        raise SystemExit("SKIP: crun is not installed")
    bare = run(work, make(work, "crun-bare", "echo runs"), found)
    if bare.returncode:
        raise SystemExit(f"SKIP: crun does not run here: {bare.stderr.strip()}")
    configure(work)
    said = run(work, hooked(work, "crun", PROBE, env=["NVIDIA_VISIBLE_DEVICES=0,3:1"]), found)
    assert said.returncode == 0, said
    assert "./nvidia0\n" in said.stdout
    assert len(UUID.findall(said.stdout)) == 3, said  # a GPU, a MIG device and its parent
    folder = hooked(work, "bad", "true", env=["NVIDIA_VISIBLE_DEVICES=9"])
    log = work / "hook.log"
    edit(folder, annotations={"run.oci.hooks.stderr": str(log)})
    bad = run(work, folder, found)
    assert bad.returncode != 0
    assert "no device '9'" in log.read_text(encoding="utf-8"), bad


def podman(work: Path) -> None:
    """Podman with the hooks.d file of this repository, its program's path put in."""
    found = shutil.which("podman")
    if not found:
        raise SystemExit("SKIP: podman is not installed")
    configure(work)
    Path("/etc/nvidia-container-runtime").mkdir(exist_ok=True)
    shutil.copy(os.environ[CONFIG_ENV], "/etc/nvidia-container-runtime/config.toml")
    hooks = work / "hooks.d"
    hooks.mkdir()
    source = Path(__file__).parents[2] / "hooks/oci-nvidia-hook.json"
    document = json.loads(source.read_text(encoding="utf-8"))
    assert document["hook"]["path"] == "/usr/bin/nvidia-container-runtime-hook"
    document["hook"]["path"] = HOOK
    (hooks / source.name).write_text(json.dumps(document), encoding="utf-8")
    conf = work / "containers.conf"
    conf.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]\n'
        'pids_limit = 0\nnetns = "none"\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n',
        encoding="utf-8",
    )
    env = {**os.environ, "CONTAINERS_CONF": str(conf), "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
    # In the node's own /run: Podman takes no run root of more than 50 characters.
    store = [f"--{key}=/run/nvct-podman/{key}" for key in ("root", "runroot", "tmpdir")]
    base = [
        found, *store, "--storage-driver", "vfs", "--hooks-dir", str(hooks),
        "run", "--rm", "--network", "none",
    ]  # fmt: skip

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        folder = make(work, f"podman{len(os.listdir(work))}", "true") / "rootfs"
        command = [*base, *more[:-1], "--rootfs", str(folder), "/bin/sh", "-c", more[-1]]
        return captured(command, env=env, timeout=100, stdin=subprocess.DEVNULL)

    bare = start("ls /dev | grep -c nvidia")
    if bare.stdout != "0\n":
        raise SystemExit(f"SKIP: podman does not run here: {bare.stderr.strip()[-300:]}")
    said = start("--env", GPU, PROBE)
    assert "./nvidia0\n" in said.stdout, said
    assert "./nvidia1\n" not in said.stdout
    assert len(UUID.findall(said.stdout)) == 1, said
    bad = start("--env", "NVIDIA_VISIBLE_DEVICES=9", "true")
    assert bad.returncode != 0
    assert "no device '9'" in bad.stderr, bad


def docker(work: Path) -> None:
    """Docker's --gpus, which finds the hook on dockerd's PATH and puts it into config.json."""
    tree = os.environ.get("NVCT_TEST_DOCKER", "")
    path = ":".join(
        [*(f"{tree}/usr/{name}" for name in ("bin", "sbin") if tree), os.environ["PATH"]]
    )
    dockerd = shutil.which("dockerd", path=path)
    if not dockerd:
        raise SystemExit("SKIP: no dockerd; NVCT_TEST_DOCKER may name a folder with one")
    configure(work)
    libraries = f"{tree}/usr/lib/{os.uname().machine}-linux-gnu"
    env = {**os.environ, "PATH": path, "LD_LIBRARY_PATH": f"{libraries}:{libraries[len(tree) :]}"}
    socket = f"unix://{work}/docker.sock"
    log = (work / "dockerd.log").open("w", encoding="utf-8")
    daemon = subprocess.Popen(
        [dockerd, "--host", socket, "--data-root", str(work / "docker"), "--exec-root",
         str(work / "docker-exec"), "--pidfile", str(work / "docker.pid"), "--bridge", "none",
         "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"],
        env=env, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    client = [shutil.which("docker", path=path) or "docker", "--host", socket]
    try:
        _use_docker(work, client, env)
    finally:
        daemon.terminate()
        daemon.wait(30)


def _use_docker(work: Path, client: list[str], env: dict[str, str]) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return captured([*client, *words], env=env, timeout=60)

    for _ in range(100):
        if call("version").returncode == 0:
            break
        time.sleep(0.2)
    else:
        text = (work / "dockerd.log").read_text(encoding="utf-8")
        raise SystemExit(f"SKIP: dockerd does not start here: {text[-300:]}")
    archive = work / "image.tar"
    subprocess.run(["tar", "-C", work / "rootfs", "-cf", archive, "."], check=True)
    assert call("import", str(archive), "image").returncode == 0
    usual = ("run", "--rm", "--network", "none")
    bare = call(*usual, "image", "/bin/sh", "-c", "ls /dev | grep -c nvidia")
    if bare.stdout != "0\n":
        raise SystemExit(f"SKIP: docker does not run containers here: {bare.stderr[-300:]}")
    for asks, names in (("all", 15), ("device=0", 1), ('"device=1,2"', 2)):
        said = call(*usual, "--gpus", asks, "image", "/bin/sh", "-c", "nvidia-smi -L")
        assert len(UUID.findall(said.stdout)) == names, said
    said = call(*usual, "--gpus", "device=9", "image", "true")
    assert said.returncode != 0
    assert "no device '9'" in said.stderr, said
    kept = ("run", "-d", "--name", "gpu", "--network", "none", "--gpus", "1")
    said = call(*kept, "image", "/bin/sh", "-c", "while :; do sleep 1; done")
    assert said.returncode == 0, said
    for _ in range(2):
        said = call("exec", "gpu", "nvidia-smi", "-L")
        assert len(UUID.findall(said.stdout)) == 1, said
        said = call("restart", "-t", "0", "gpu")
        assert said.returncode == 0, said
    call("rm", "-f", "gpu")
