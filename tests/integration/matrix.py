# SPDX-License-Identifier: Apache-2.0
"""Containers of every kind on a simulated node: what is run inside the node, in one process.

`run_all` starts each case of `CASES` once, looks at it from inside and from outside, and leaves
RESULTS in the work folder. Verdicts are the tests' (test_matrix.py). Everything lies in a tmpfs
that everybody may search: the hook of a container with a user namespace is a stranger here.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nvct.launcher.install import Built, default_built, install
from nvct.linux import constants as c
from nvct.linux.kernel import KERNEL
from nvct.paths import CONFIG_ENV
from nvct_sim import attach, bundle
from tests.integration import inside, rootless
from tests.support import cdi_engine, images
from tests.support.debian_root import FULL
from tests.support.processes import captured

RESULTS = "results.json"
HOME = Path("/run/matrix")
HOST_ROOT = 200_000
"""Who the container's root is outside, in a user namespace."""
DEVICES = ("0", "3:1")
ASKS = [f"NVIDIA_VISIBLE_DEVICES={','.join(DEVICES)}", "NVIDIA_DRIVER_CAPABILITIES=all"]
SPECS = {"podman-cdi": ("gpu", "classic"), "podman-farm": ("farm", "farm")}
"""Class and layout of the specifications that Podman reads."""
TIMEOUT_S = 60
LOOK = r"""
cd /dev
echo "== nodes"; find . -name '*nvidia*' -type c | sort
echo "== opened"; for n in nvidiactl nvidia-uvm nvidia[0-9]; do (: <> $n) 2>&1; done
echo "== smi"; nvidia-smi -L 2>&1
echo "== musl"; [ -e /opt ] && for l in /lib/ld-musl-*; do $l --list /opt/needs-libcuda.so 2>&1; done
echo "== paths"; cat /etc/ld-musl-*.path 2>&1
echo "== files"; for f in /usr/lib*/libcuda.so.1 /usr/lib*/*/libcuda.so.1 /usr/bin/nvidia-smi \
    /usr/local/nvidia/bin/nvidia-smi /usr/local/nvidia/lib*/libcuda.so.1; do [ -r $f ] && readlink -f $f; done
echo "== params"; grep Modify /proc/driver/nvidia/params
given() { while read -r a b c d target rest; do
  case $target in
    /usr/local/nvidia*|/dev/.nvct*|/.nvct/*) [ -d "$target" ] && find "$target" -type f;;
    *nvidia*|*cuda*) [ -f "$target" ] && echo "$target";;
  esac
done < /proc/self/mountinfo; }
echo "== mounted"; given
echo "== writable"; given | while read -r f; do (: >> "$f") 2>&- && echo "$f"; done
echo "== root"; (: > /new) 2>&1
echo "== end"
"""


@dataclass(frozen=True, kw_only=True)
class Image:
    """A root file system and how a container is made of it.

    Attributes:
        name: of the table's row.
        kind: of tests.support.images.
        readonly: config.json wants the root read-only.
        owner: "" for the host's root; "chowned" or "idmapped": a user namespace, and how its root
            owns the files.
        user: who runs in it.
        ids: how many users and groups its user namespace has.
    """

    name: str
    kind: str = "debian"
    readonly: bool = False
    owner: str = ""
    user: int = 0
    ids: int = 65536


IMAGES = (
    Image(name="debian"),
    Image(name="rhel", kind="rhel"),
    Image(name="musl", kind="musl"),
    Image(name="scratch", kind="scratch"),
    Image(name="read-only", readonly=True),
    Image(name="user", user=1000),
    Image(name="userns", owner="chowned"),
    Image(name="userns-small", owner="chowned", kind="rhel", ids=10),
    Image(name="userns-read-only", owner="chowned", readonly=True),
    Image(name="userns-user", owner="chowned", user=1000),
    Image(name="userns-idmapped", owner="idmapped"),
)
RUNTIMES = ("runc", "crun")
DENIED_BY_CRUN = ("crun", "specification", "userns-user")
"""In a user namespace crun gives a specification's nodes to root alone, in either layout."""
WAYS = ("classic", "farm", "auto", "prestart", "specification", *SPECS, "rootless")
SELECTED = {
    # A view of hard links, where farm has one of bind mounts: what differs is how it is mounted.
    "auto": ["debian", "musl", "read-only", "userns", "userns-read-only", "userns-idmapped"],
    "prestart": ["debian", "rhel", "musl", "read-only", "userns-user", "userns-idmapped"],
    # Podman makes user namespaces of its own storage's images; a folder as the root has none.
    **{key: ["debian", "rhel", "musl", "read-only", "user"] for key in SPECS},
    "rootless": ["debian", "musl", "read-only", "user"],
}
"""Rows of the ways that do not get them all, to keep the time short."""
OF_CRUN = ("debian", "read-only", "userns-read-only", "userns-idmapped")
"""Rows of crun without NVCT_TESTS_PROFILE=full: those where it mounts otherwise than runc."""


@dataclass(kw_only=True)
class Result:
    """What came of a case.

    Attributes:
        skipped: why it could not be tried here, "" where it was.
        status, said, complained: of the runtime: exit status, standard output, standard error.
        owners: who owns what is in the root afterwards, host ids of users and groups.
        cache, dropin: whether ld.so.cache and nvct's file for ldconfig are there.
        kept: what is in the run directory of an ordinary user.
    """

    skipped: str = ""
    status: int = 0
    said: str = ""
    complained: str = ""
    owners: list[list[int]] = field(default_factory=list)
    cache: bool = False
    dropin: bool = False
    kept: list[str] = field(default_factory=list)

    def part(self, name: str) -> list[str]:
        """Return the lines of a part of what LOOK printed."""
        _, _, rest = self.said.partition(f"== {name}\n")
        return rest.partition("== ")[0].splitlines()


def cases() -> list[tuple[str, str, Image]]:
    """Return the table: (runtime, way, image)."""
    return [
        (runtime, way, image)
        for way in WAYS
        for runtime in RUNTIMES
        for image in IMAGES
        if image.name in SELECTED.get(way, [image.name])
        and (runtime, way, image.name) != DENIED_BY_CRUN
        and (FULL or runtime == "runc" or image.name in OF_CRUN)
    ]


def name_of(case: tuple[str, str, Image]) -> str:
    """Return a case's name."""
    runtime, way, image = case
    return f"{way}-{runtime}-{image.name}"


def run_all(work: Path) -> None:
    """Run every case; the results are JSON, by name."""
    lab = _Lab(work)
    found: dict[str, Any] = {name_of(case): asdict(lab.run(*case)) for case in cases()}
    lab.leave()
    found["uuids"] = lab.uuids
    (work / RESULTS).write_text(json.dumps(found, indent=1), encoding="utf-8")


class _Lab:
    """What is made once for all cases."""

    def __init__(self, work: Path) -> None:
        HOME.mkdir(mode=0o755)
        KERNEL.mount("matrix", str(HOME), "tmpfs", 0, "mode=755")
        if os.path.ismount("/sys/fs/cgroup/unified"):  # crun refuses the hybrid layout
            KERNEL.umount2("/sys/fs/cgroup/unified", c.MNT_DETACH)
        (HOME / "bin").mkdir()
        self.python = _python_for_all()
        self._install()
        for kind in {image.kind for image in IMAGES}:
            images.build(kind, HOME / "images" / kind)
        self.unable = {runtime: self._unable(runtime) for runtime in RUNTIMES}
        inside.configure(work)
        self._generate()
        self.user: rootless.User | None = None

    def leave(self) -> None:
        """End what would outlive this process."""
        if self.user is not None:
            self.user.leave()

    def _install(self) -> None:
        """Install nvct where the root of a user namespace may run it."""
        built = default_built()
        shutil.copytree(Path(built.packages, "nvct"), HOME / "site/nvct")
        install(
            HOME / "bin",
            built=Built(
                python=self.python or built.python, packages=str(HOME / "site"), cold=built.cold
            ),
        )

    def _generate(self) -> None:
        program = Path(sys.executable).with_name("nvidia-ctk")
        for cls, layout in SPECS.values():
            path = _spec_path(cls)
            path.parent.mkdir(exist_ok=True)
            command = [
                str(program), "cdi", "generate", "--output", str(path), "--class", cls,
                "--layout", layout, "--cdi-version-max", "0.5.0",
                "--nvidia-cdi-hook-path", str(HOME / "bin/nvidia-cdi-hook"),
            ]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True)
        spec = json.loads(_spec_path("gpu").read_text(encoding="utf-8"))
        names = inside._uuids(spec)
        self.uuids = [names[device] for device in DEVICES]

    def _unable(self, runtime: str) -> str:
        """Return why a runtime starts nothing here."""
        if shutil.which(runtime) is None:
            return f"{runtime} is not installed"
        folder = self._bundle(Image(name="bare"), f"bare-{runtime}", "true", [])
        done = self._start([runtime, "--root", str(HOME / "state"), "run", "--bundle", str(folder),
                            f"bare-{runtime}"])  # fmt: skip
        return "" if done.returncode == 0 else f"{runtime} runs nothing here: {done.stderr[-200:]}"

    def _start(
        self, command: list[str], env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return captured(
            command, errors="replace",
            timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
        )  # fmt: skip

    def run(self, runtime: str, way: str, image: Image) -> Result:
        """Run one case."""
        reason = self.unable[runtime]
        if (image.owner or way == "rootless") and not self.python:
            reason = "no interpreter that everybody may run"
        if reason:
            return Result(skipped=reason)
        name = f"{way}-{runtime}-{image.name}"
        try:
            if way in SPECS:
                return self._podman(runtime, SPECS[way][0], image, name)
            if way == "rootless":
                return self._rootless(runtime, image, name)
            return self._create(runtime, way, image, name)
        except OSError as error:
            if image.owner == "idmapped":
                return Result(
                    skipped=f"this file system or kernel has no idmapped mounts: {error}"
                )
            raise

    def _create(self, runtime: str, way: str, image: Image, name: str) -> Result:
        """Run a bundle by the shim, or by the runtime with the prestart hook in it."""
        config = HOME / f"{way}-{runtime}.toml"
        config.write_text(_config(runtime, way), encoding="utf-8")
        folder = self._bundle(image, name, LOOK, ASKS)
        program = str(HOME / "bin/nvidia-container-runtime")
        if way == "prestart":
            program = str(shutil.which(runtime))
            _add_prestart_hook(folder / "config.json", config)
        if way == "specification":
            program = str(shutil.which(runtime))
            document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            cdi_engine.inject(document, str(_spec_path("farm")), DEVICES)
            (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
        if image.owner == "idmapped":
            images.mount_idmapped(folder / "rootfs", HOST_ROOT)
        done = self._start(
            [program, "--root", str(HOME / "state"), "run",
             "--bundle", str(folder), name],
            {CONFIG_ENV: str(config)},
        )  # fmt: skip
        if image.owner == "idmapped":
            KERNEL.umount2(str(folder / "rootfs"), c.MNT_DETACH)
        return _looked_at(done, folder / "rootfs")

    def _podman(self, runtime: str, cls: str, image: Image, name: str) -> Result:
        program = shutil.which("podman")
        if program is None:
            return Result(skipped="podman is not installed")
        folder = self._bundle(image, name, LOOK, []) / "rootfs"
        conf = HOME / "containers.conf"
        conf.write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]\n'
            'pids_limit = 0\nnetns = "none"\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
            encoding="utf-8",
        )
        devices = [word for d in DEVICES for word in ("--device", f"nvidia.com/{cls}={d}")]
        store = [f"--{key}={HOME}/podman/{key}" for key in ("root", "runroot", "tmpdir")]
        command = [
            program, *store, "--storage-driver", "vfs", "--runtime", str(shutil.which(runtime)),
            "run", "--rm", "--network", "none", "--user", str(image.user), *devices,
            *(["--read-only", "--read-only-tmpfs=false"] if image.readonly else []),
        ]  # fmt: skip
        env = {"CONTAINERS_CONF": str(conf), "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        done = self._start([*command, "--rootfs", str(folder), "/bin/sh", "-c", LOOK], env)
        return _looked_at(done, folder)

    def _rootless(self, runtime: str, image: Image, name: str) -> Result:
        """Run a container by Podman and the shim as an ordinary user."""
        if self.user is None:
            try:
                self.user = rootless.User(HOME / "user", HOME / "site", self.python)
            except rootless.NotPossibleError as error:
                return Result(skipped=str(error))
        root = self._bundle(image, name, LOOK, []) / "rootfs"
        shutil.copytree(
            root, self.user.home / name, symlinks=True
        )  # files that it shares with none
        root = self.user.home / name
        words = [word for ask in ASKS for word in ("--env", ask)] + ["--user", str(image.user)]
        words += ["--read-only", "--read-only-tmpfs=false"] if image.readonly else []
        config = _config(runtime, "rootless")
        bare = self.user.podman(runtime, root, ["--", "/bin/sh", "-c", ":"], config=config)
        if bare.returncode:
            return Result(skipped=f"no rootless container runs here: {bare.stderr[-300:]}")
        done = self.user.podman(
            runtime, root, [*words, "--", "/bin/sh", "-c", LOOK], config=config
        )
        result = _looked_at(done, root)
        result.kept = sorted(os.listdir(self.user.run_dir))
        return result

    def _bundle(self, image: Image, name: str, script: str, env: list[str]) -> Path:
        folder = bundle.make_bundle(
            HOME / "bundles" / name,
            HOME / "images" / image.kind,
            ["/bin/sh", "-c", script],
            env=env,
        )
        path = folder / "config.json"
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        document["root"]["readonly"] = image.readonly
        document["process"]["user"] = {"uid": image.user, "gid": image.user}
        if image.owner:
            document["linux"]["namespaces"].append({"type": "user"})
            mapping = [{"containerID": 0, "hostID": HOST_ROOT, "size": image.ids}]
            document["linux"] |= {"uidMappings": mapping, "gidMappings": mapping}
        if image.owner == "chowned":
            images.give_away(folder / "rootfs", HOST_ROOT)
        path.write_text(json.dumps(document), encoding="utf-8")
        return folder


def _spec_path(cls: str) -> Path:
    return Path(f"/etc/cdi/nvidia-{cls}.json")


def _config(runtime: str, way: str) -> str:
    """Return config.toml for a way."""
    layout = way if way in ("farm", "auto") else "classic"
    farm = attach.farm_dir() if way == "auto" else f"{HOME}/farm"
    return (
        f'[nvidia-container-cli]\nroot = "{inside.DRIVER_ROOT}"\n'
        f'[nvidia-container-runtime]\nruntimes = ["{shutil.which(runtime)}"]\n'
        f'[nvct]\nhook-path = "{HOME}/bin/nvidia-cdi-hook"\n'
        f'layout = "{layout}"\nfarm-dir = "{farm}"\n'
    )


def _add_prestart_hook(path: Path, config: Path) -> None:
    """Put the hook into a config.json as Docker does for --gpus."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    program = HOME / "bin/nvidia-container-runtime-hook"
    hook = {
        "path": str(program),
        "args": [program.name, "prestart"],
        "env": [f"PATH={os.environ['PATH']}", f"{CONFIG_ENV}={config}"],
    }
    document["hooks"] = {"prestart": [hook]}
    path.write_text(json.dumps(document), encoding="utf-8")


def _python_for_all() -> str:
    """Return an interpreter that everybody may run, "" where there is none."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    for path in (own, "/usr/bin/python3"):
        real = Path(os.path.realpath(path))
        if real.exists() and all(p.stat().st_mode & stat.S_IXOTH for p in [real, *real.parents]):
            return str(real)
    return ""


def _looked_at(done: subprocess.CompletedProcess[str], root: Path) -> Result:
    owners = set()
    for folder, folders, files in os.walk(root):
        for name in [".", *folders, *files]:
            found = os.lstat(os.path.join(folder, name))
            owners.add((found.st_uid, found.st_gid))
    return Result(
        status=done.returncode,
        said=done.stdout,
        complained=done.stderr,
        owners=[list(pair) for pair in sorted(owners)],
        cache=(root / "etc/ld.so.cache").exists(),
        dropin=(root / "etc/ld.so.conf.d/00-nvct.conf").exists(),
    )
