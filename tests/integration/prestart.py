# SPDX-License-Identifier: Apache-2.0
"""What the tests of the prestart hook do inside a simulated node; each function is a process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from nvct.linux.constants import MNT_DETACH
from nvct.linux.kernel import KERNEL
from nvct.paths import CONFIG_ENV
from tests.integration import inside
from tests.integration.inside import PROBE, UUID, configure, expected_nodes, generate, make, run

HOOK = str(Path(sys.executable).with_name("nvidia-container-runtime-hook"))
GPU = "NVIDIA_VISIBLE_DEVICES=0"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video,graphics,display,ngx"


def hook_env() -> list[str]:
    """Return what an engine's configuration gives the hook as its environment."""
    return [f"PATH={os.environ['PATH']}", f"{CONFIG_ENV}={os.environ[CONFIG_ENV]}"]


def edit(folder: Path, **members: Any) -> dict[str, Any]:
    """Change members of a bundle's config.json; return the whole."""
    path = folder / "config.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    document.update(members)
    path.write_text(json.dumps(document), encoding="utf-8")
    return document


def hooked(work: Path, name: str, script: str, **asks: Any) -> Path:
    """Return a bundle with the prestart hook, as Docker writes one for --gpus."""
    folder = make(work, name, script, **asks)
    hook = {"path": HOOK, "args": [os.path.basename(HOOK), "prestart"], "env": hook_env()}
    edit(folder, hooks={"prestart": [hook]})
    return folder


def runc(work: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a bundle with runc itself."""
    return run(work, folder, shutil.which("runc"))


def asked_gpus(work: Path) -> None:
    """Containers hold exactly the GPUs that they asked for, by every kind of name."""
    configure(work, layout="classic")  # as the hook delivers
    spec = generate()
    for number, wish in enumerate(inside.wishes(spec, 8)):
        if wish.annotations:
            continue
        folder = hooked(work, f"g{number}", PROBE, env=[*wish.env, CAPABILITIES])
        said = runc(work, folder)
        parts = said.stdout.split("--\n")
        assert len(parts) == 4, said
        assert parts[0].split() == expected_nodes(spec, wish.names), wish
        assert int(parts[1]) > 10, said
        assert parts[2].strip() == "1", said
        shim = make(work, f"s{number}", PROBE, env=[*wish.env, CAPABILITIES])
        assert run(work, shim).stdout == said.stdout, "the shim gives something else"


def without_rule(work: Path) -> None:
    """Where the hook may not write device rules, the node is there and cannot be opened."""
    configure(work, "no-cgroups = true\n")
    script = "cat /dev/nvidia0; cat /dev/nvidiactl; nvidia-smi -L | grep -c GPU"
    said = runc(work, hooked(work, "no-cgroups", script, env=[GPU]))
    assert said.stderr.count("Operation not permitted") == 2, said
    configure(work)
    said = runc(work, hooked(work, "cgroups", script, env=[GPU]))
    assert said.stderr.count("No such device or address") == 2, said
    assert said.stdout == "1\n", said


def unified(work: Path) -> None:
    """The same on cgroup v2, where runc's own device program is replaced."""
    try:
        if os.path.ismount("/sys/fs/cgroup"):
            KERNEL.umount2("/sys/fs/cgroup", MNT_DETACH)
        KERNEL.mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    except OSError as error:
        raise SystemExit(f"SKIP: cgroup2 cannot be mounted here: {error}") from error
    configure(work)
    bare = runc(work, make(work, "bare", "true"))
    if bare.returncode:
        raise SystemExit(f"SKIP: runc does not run on cgroup v2 here: {bare.stderr.strip()}")
    script = (
        "cd /tmp; for n in 0 1; do mknod n$n c 195 $n; cat n$n; done; mknod kmsg c 1 11; cat kmsg;"
        " cat /dev/null && head -c1 /dev/zero | wc -c; nvidia-smi -L | grep -c GPU"
    )
    said = runc(work, hooked(work, "v2", script, env=[GPU]))
    assert said.returncode == 0, said
    assert "'n0': No such device or address" in said.stderr, said
    assert "'n1': Operation not permitted" in said.stderr, said
    assert "'kmsg': Operation not permitted" in said.stderr, said
    assert said.stdout.split() == ["1", "1"], said


def writes(work: Path) -> None:
    """A write through every mount fails, and every mount is private, nosuid and nodev."""
    configure(work)
    script = """
        grep -E ' /(usr|lib|etc|run|var|tmp)' /proc/self/mountinfo | grep -v ' / ' > /tmp/mounts
        n=0
        while read -r a b c d path rest; do
            n=$((n + 1))
            case " $rest" in *shared:*|*master:*) echo "$path is not private" ;; esac
            case ",${rest%% *}," in *,ro,*) ;; *) [ -S "$path" ] || echo "$path is writable: $rest" ;; esac
            case ",${rest%% *}," in *,nosuid,*nodev,*) ;; *) echo "$path: $rest" ;; esac
            if [ -d "$path" ]; then path=$path/x; fi
            if [ ! -S "$path" ] && (echo >> "$path") 2>/dev/null; then echo "$path was written"; fi
            (mount -o remount,bind,rw "$path") 2>/dev/null && echo "$path can be changed"
        done < /tmp/mounts
        echo $((n > 10))
    """
    said = runc(work, hooked(work, "writes", script, env=[GPU, CAPABILITIES]))
    assert said.stdout == "1\n", said


def nothing_asked(work: Path) -> None:
    """Who asks for nothing, or has been served already, stays as it was."""
    configure(work)
    spec = generate()
    served = {"cdi.k8s.io/x": "nvidia.com/gpu=0"}
    asked: list[dict[str, Any]] = [
        {}, {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}, {"env": ["NVIDIA_VISIBLE_DEVICES="]},
        {"env": [GPU, "NVIDIA_VISIBLE_DEVICES=void"]}, {"annotations": served},
    ]  # fmt: skip
    for number, asks in enumerate(asked):
        folder = hooked(work, f"n{number}", "ls /dev", **asks)
        before = _tree(folder / "rootfs")
        said = runc(work, folder)
        assert (said.returncode, said.stderr) == (0, ""), said
        assert "nvidia" not in said.stdout
        after = _tree(folder / "rootfs")
        assert after - before <= {"/dev", "/proc", "/sys"}, after - before
    twice = hooked(work, "twice", PROBE, env=[GPU, CAPABILITIES])
    said = run(work, twice)  # the shim serves it, and takes the hook away
    assert said.stdout.split("--\n")[0].split() == expected_nodes(spec, ["0"]), said


def _tree(root: Path) -> set[str]:
    return {
        os.path.join(folder, name).removeprefix(str(root))
        for folder, folders, files in os.walk(root)
        for name in folders + files
    }


def refusals(work: Path) -> None:
    """What cannot be had fails the container with the hook's one line."""
    configure(work)
    cases = {
        "9": "nvidia.com/gpu has no device '9'",
        "gpu0": "gpu0",
        "nvidia.com/gpu=0": "which a hook cannot give",
        "0,nvidia.com/gpu=1": "mixes",
    }
    for number, (value, reason) in enumerate(cases.items()):
        folder = hooked(work, f"r{number}", "true", env=[f"NVIDIA_VISIBLE_DEVICES={value}"])
        said = runc(work, folder)
        assert said.returncode == 1, said
        assert reason in said.stderr, said
        assert said.stderr.count("nvidia-container-runtime-hook: ") == 1, said
    need = hooked(work, "need", "true", env=[GPU, "NVIDIA_REQUIRE_X=driver>=999"])
    said = runc(work, need)
    assert said.returncode == 1, said
    assert "driver>=999" in said.stderr, said
    configure(work, '[nvidia-container-runtime]\nmode = "cdi"\n')
    said = runc(work, hooked(work, "mode", "true", env=[GPU]))
    assert said.returncode == 1, said
    assert "a prestart hook gives no GPU" in said.stderr, said  # a long path is cut before it
    assert runc(work, hooked(work, "mode-none", "true")).returncode == 0
    Path(os.environ[CONFIG_ENV]).write_text("mode = [broken", encoding="utf-8")
    assert runc(work, hooked(work, "broken-none", "true")).returncode == 0
    said = runc(work, hooked(work, "broken", "true", env=[GPU]))
    assert said.returncode == 1
    assert "config.toml" in said.stderr, said


def other_shapes(work: Path) -> None:
    """A read-only root, /dev of the image, a process that is not root, and an own node."""
    configure(work)
    smi = "nvidia-smi -L | grep -c GPU"
    folder = hooked(work, "ro", f"ldconfig -p | grep -c libcuda.so.1; {smi}", env=[GPU])
    edit(folder, root={"path": "rootfs", "readonly": True})
    assert runc(work, folder).stdout == "1\n1\n"

    folder = hooked(work, "user", f"id -u; stat -c '%u %a' /dev/nvidia0; {smi}", env=[GPU])
    document = edit(folder)
    document["process"]["user"] = {"uid": 1000, "gid": 1000}
    edit(folder, process=document["process"])
    assert runc(work, folder).stdout == "1000\n1000 666\n1\n"

    folder = hooked(work, "absolute", smi, env=[GPU])
    edit(folder, root={"path": str(folder / "rootfs")})
    assert runc(work, folder).stdout == "1\n"

    folder = hooked(work, "image-dev", f"ls -l /dev/nvidia0; {smi}", env=[GPU])
    dev = folder / "rootfs/dev"
    dev.mkdir(exist_ok=True)
    (dev / "nvidia0").symlink_to("/etc/passwd")
    document = edit(folder)
    edit(folder, mounts=[m for m in document["mounts"] if not m["destination"].startswith("/dev")])
    said = runc(work, folder)
    assert said.stdout.startswith("crw"), said
    assert said.stdout.endswith("\n1\n"), said

    folder = hooked(work, "host-dev", smi, env=[GPU])
    document = edit(folder)
    mounts = [m for m in document["mounts"] if not m["destination"].startswith("/dev")]
    host = {"destination": "/dev", "type": "bind", "source": "/dev", "options": ["rbind"]}
    edit(folder, mounts=[*mounts, host])
    before = os.lstat("/dev/nvidia0")
    assert runc(work, folder).stdout == "1\n"
    assert os.lstat("/dev/nvidia0") == before


def restarted(work: Path) -> None:
    """The same root served a second time, by another driver request, is right again."""
    configure(work)
    folder = hooked(work, "again", PROBE, env=[GPU])
    first = runc(work, folder)
    assert first.returncode == 0, first
    second = runc(work, folder)
    assert second.stdout == first.stdout


def user_namespace(work: Path) -> None:
    """In a user namespace the host's nodes are bound, and files belong to its root."""
    configure(work)
    source = hooked(work, "userns", f"{PROBE}; stat -c '%u %g' /etc/ld.so.cache", env=[GPU])
    folder = Path("/run/userns")
    shutil.copytree(source, folder, symlinks=True)
    for place, folders, files in os.walk(folder):
        for name in [".", *folders, *files]:
            os.lchown(os.path.join(place, name), 100000, 100000)
    document = edit(folder)
    linux = document["linux"]
    linux["namespaces"] = [{"type": name} for name in ("ipc", "uts", "mount", "user")]
    # No new procfs or sysfs can be mounted in there: the simulated node covers parts of both.
    covered = ("/proc", "/sys")
    mounts = [m for m in document["mounts"] if m["destination"] not in covered]
    mounts += [
        {"destination": path, "type": "bind", "source": path, "options": ["rbind"]}
        for path in covered
    ]
    edit(folder, mounts=mounts)
    mapping = {"containerID": 0, "hostID": 100000, "size": 65536}
    edit(folder, linux={**linux, "uidMappings": [mapping], "gidMappings": [mapping]})
    said = runc(work, folder)
    assert said.returncode == 0, said
    assert "./nvidia0\n" in said.stdout
    assert "./nvidia1\n" not in said.stdout
    assert len(UUID.findall(said.stdout)) == 1, said
    assert said.stdout.endswith("\n0 0\n"), said
    foreign = [p for p in folder.rglob("*") if os.lstat(p).st_uid < 100000]
    assert foreign == [], foreign
