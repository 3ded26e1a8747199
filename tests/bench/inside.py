# SPDX-License-Identifier: Apache-2.0
"""The groups of measurements, inside a simulated node's mount namespace."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from nvct.launcher import install
from nvct.paths import CONFIG_ENV, RUN_DIR_ENV
from nvct_sim import attach, bundle, rootfs
from tests.bench import bundles, measure, report
from tests.bench.measure import Subject
from tests.support import cdi_engine

ROUNDS = int(os.environ.get("NVCT_BENCH_ROUNDS", "40"))
DRIVER_ROOT = "/run/nvidia/driver"
HOT = Path(__file__).parents[2] / "build/static/nvct-hot"
"""Program that the C launcher starts, as in packages; `make static` builds it."""
PLAIN = ["PATH=/usr/bin:/bin"]
PADDING = {f"org.example.label-{i}": "x" * 200 for i in range(120)}
"""Annotations that make config.json as large as Docker's, 34 KB with its seccomp profile."""


class Bench:
    """The programs, folders and environments that all groups use."""

    def __init__(self, work: Path) -> None:
        """Install both forms of the launcher, and a runtime that only exits."""
        self.work = work
        self.noop = work / "noop"
        self._compile_noop()
        self.rootfs = work / "rootfs"
        rootfs.build_rootfs(self.rootfs)
        self.bundles = bundles.Bundles(work, self.rootfs)
        self.c = self._launchers("c")
        self.sh = self._launchers("sh")
        self.hot = self._launchers("c", HOT) if HOT.exists() else None
        self.more_env: list[str] = []
        self.specs: dict[str, str] = {}
        named = os.environ.get("NVCT_BENCH_PEER")
        self.peer = Path(named) if named else None
        runc = shutil.which("runc")
        if runc is None:
            raise SystemExit("bench needs runc")
        self.runc = runc

    def _compile_noop(self) -> None:
        """Compile a static program that returns 0, to measure only the program before it."""
        source = self.work / "noop.c"
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        subprocess.run(["cc", "-O2", "-static", "-o", self.noop, source], check=True)

    def _launchers(self, form: str, hot: Path | None = None) -> Path:
        folder = self.work / (f"bin-{form}" if hot is None else "bin-hot")
        folder.mkdir()
        built = replace(install.default_built(), hot="" if hot is None else str(hot))
        install.install(folder, form, built)
        return folder

    def env(self, name: str, runtime: str, nvct: str = 'layout = "classic"\n') -> dict[str, str]:
        """Return an environment with a separate config.toml that names a low-level runtime."""
        path = self.work / f"{name}.toml"
        path.write_text(
            f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n'
            f'[nvidia-container-runtime]\nruntimes = ["{runtime}"]\n[nvct]\n{nvct}',
            encoding="utf-8",
        )
        old = time.time() - 60
        os.utime(path, (old, old))  # recent files are compared by hash
        return {
            "PATH": os.environ["PATH"],
            CONFIG_ENV: str(path),
            RUN_DIR_ENV: str(self.work / f"run-{name}"),
        }

    def farm_env(self, name: str, runtime: str) -> dict[str, str]:
        """Return an environment with the default layout, and hard links for a view."""
        return self.env(name, runtime, nvct=f'farm-dir = "{attach.farm_dir()}"\n')

    def peer_env(self, name: str, runtime: str, mode: str) -> dict[str, str]:
        """Return the incumbent's environment: a separate config.toml, its programs on PATH."""
        path = self.work / f"{name}.toml"
        path.write_text(
            f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n'
            f'[nvidia-container-runtime]\nmode = "{mode}"\nruntimes = ["{runtime}"]\n'
            '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/etc/cdi"]\n'
            f'[nvidia-ctk]\npath = "{self.peer}/nvidia-ctk"\n',
            encoding="utf-8",
        )
        return {"PATH": f"{self.peer}:{os.environ['PATH']}", CONFIG_ENV: str(path)}

    def document(self, devices: str | None) -> bytes:
        """Return a config.json of the usual size, with or without a request."""
        env = [] if devices is None else [f"NVIDIA_VISIBLE_DEVICES={devices}", *self.more_env]
        made = bundle.config(["/bin/true"], env=env, annotations=PADDING)
        return json.dumps(made).encode()


def _noop_group(bench: Bench, title: str, devices: str | None, command: list[str]) -> None:
    """Measure one command before a runtime that only exits."""
    folder = bench.bundles.folder("noop")
    document = bench.document(devices)
    words = [*command, "--bundle", str(folder), "x"] if command == ["create"] else command

    def prepare() -> None:
        (folder / "config.json").write_bytes(document)

    noop, name = str(bench.noop), "nvidia-container-runtime"

    def subject(label: str, program: str, env: dict[str, str]) -> Subject:
        return Subject(name=label, commands=[[program, *words]], env=env, prepare=prepare)

    subjects = [
        subject("bare exec", noop, {"PATH": "/usr/bin"}),
        subject("nvct (C)", str(bench.c / name), bench.env("c", noop)),
        subject("nvct (sh)", str(bench.sh / name), bench.env("sh", noop)),
    ]
    if bench.hot:
        subjects.insert(2, subject("nvct (static)", str(bench.hot / name), bench.env("st", noop)))
    peers = []
    if bench.peer:
        program = str(bench.peer / name)
        peers.append(subject("peer default", program, bench.peer_env("pj", noop, "auto")))
        peers.append(subject("peer cdi", program, bench.peer_env("pc", noop, "cdi")))
    measure.interleaved(subjects + peers, ROUNDS)
    report.print_group(title, subjects + peers, peers)


def _container(
    bench: Bench, label: str, program: str, env: dict[str, str], data: bytes
) -> Subject:
    """Return create, start and delete of a real container that exits at once."""
    word = "".join(c if c.isalnum() else "-" for c in label)
    folder = bench.bundles.folder(f"e2e-{word}")
    root = ["--root", str(bench.work / "runc")]
    name = f"bench-{os.getpid()}-{word}"

    def prepare() -> None:
        bench.bundles.renew(folder)
        (folder / "config.json").write_bytes(data)

    commands = [
        [program, *root, "create", "--bundle", str(folder), name],
        [program, *root, "start", name],
        [program, *root, "delete", "--force", name],
    ]
    return Subject(name=label, commands=commands, env=env, prepare=prepare)


def _engine_group(bench: Bench, title: str, devices: str) -> None:
    """Measure the edits of specifications, as engines that read CDI apply them, by runc alone."""

    def subject(label: str, spec: str) -> Subject:
        document = json.loads(bench.document(None))
        if spec:
            document = cdi_engine.inject(document, spec, [devices])
        data = json.dumps(document).encode()
        return _container(bench, label, bench.runc, {"PATH": os.environ["PATH"]}, data)

    subjects = [subject("bare runc", "")]
    for label, spec in bench.specs.items():
        subjects.append(subject(label, spec))
    peers = [s for s in subjects if s.name.startswith("peer")]
    measure.interleaved(subjects, ROUNDS)
    report.print_group(title, subjects, peers)


def _container_group(bench: Bench, title: str, devices: str | None) -> None:
    """Measure create, start and delete of a real container that exits at once."""
    document = bench.document(devices)
    plain = bench.document(None)

    def subject(label: str, program: str, env: dict[str, str], data: bytes) -> Subject:
        return _container(bench, label, program, env, data)

    name = "nvidia-container-runtime"
    subjects = [
        subject("bare runc", bench.runc, {"PATH": os.environ["PATH"]}, plain),
        subject("nvct classic", str(bench.c / name), bench.env("ec", bench.runc), document),
        subject("nvct cl. (sh)", str(bench.sh / name), bench.env("es", bench.runc), document),
        subject("nvct farm", str(bench.c / name), bench.farm_env("ef", bench.runc), document),
    ]
    if bench.hot:
        hot, env = str(bench.hot / name), bench.farm_env("et", bench.runc)
        hooks = f'layout = "classic"\nhook-path = "{bench.hot}/nvidia-cdi-hook"\n'
        classic = bench.env("eh", bench.runc, nvct=hooks)
        subjects.append(subject("nvct cl. (st)", hot, classic, document))
        subjects.append(subject("nvct farm (st)", hot, env, document))
    peers = []
    if bench.peer:
        program = str(bench.peer / name)
        peers = [
            subject("peer default", program, bench.peer_env("epj", bench.runc, "auto"), document),
            subject("peer cdi", program, bench.peer_env("epc", bench.runc, "cdi"), document),
        ]
    measure.interleaved(subjects + peers, ROUNDS)
    report.print_group(title, subjects + peers, peers)


def _hook_group(bench: Bench) -> None:
    """Measure the hooks of one GPU container, outside the runtime."""
    groups = [("nvct (C)", bench.c / "nvidia-cdi-hook", "/var/run/cdi/nvct.json")]
    if bench.hot:
        groups.append(("nvct (static)", bench.hot / "nvidia-cdi-hook", "/var/run/cdi/nvct.json"))
    if bench.peer:
        groups.append(("peer", bench.peer / "nvidia-cdi-hook", "/etc/cdi/peer.json"))
    subjects = [Subject(name="bare exec", commands=[[str(bench.noop)]], env={"PATH": "/usr/bin"})]
    for label, program, spec_path in groups:
        folder = bench.bundles.folder(f"hook-{label.replace(' ', '-')}")
        state = folder / "state.json"
        # stdin of every command: spawn() opens it each time.
        state.write_text(
            json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 0, "bundle": str(folder)}),
            encoding="utf-8",
        )
        (folder / "config.json").write_bytes(bench.document("0"))
        common = json.loads(Path(spec_path).read_text(encoding="utf-8"))["containerEdits"]
        commands = [[str(program), *hook["args"][1:]] for hook in common["hooks"]]
        env = dict(e.split("=", 1) for e in common["hooks"][0]["env"])

        def prepare(folder: Path = folder, common: dict[str, object] = common) -> None:
            bench.bundles.renew(folder)
            _copy_libraries(folder / "rootfs", common)

        if label == "peer":
            # These two need a container's mounts.
            needs_mounts = {"update-ldcache", "disable-device-node-modification"}
            commands = [c for c in commands if not needs_mounts & set(c)]
        subjects.append(
            Subject(name=label, commands=commands, env=env, prepare=prepare, stdin=str(state))
        )
    measure.interleaved(subjects, ROUNDS)
    peers = subjects[-1:] if bench.peer else []
    note = " (the peer's without update-ldcache and the params mask)" if bench.peer else ""
    report.print_group(f"CDI hooks of one container{note}", subjects, peers)


def _copy_libraries(root: Path, common: dict[str, object]) -> None:
    """Copy the driver's files to the paths where the runtime mounts them."""
    mounts = common["mounts"]
    assert isinstance(mounts, list)
    for mount in mounts:
        target = root / str(mount["containerPath"]).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() and Path(mount["hostPath"]).is_file():
            shutil.copyfile(mount["hostPath"], target)


def _burst(bench: Bench, count: int = 50) -> None:
    """Measure concurrent creates: the time until the last one ends."""
    name = "nvidia-container-runtime"
    rows = [("bare exec", str(bench.noop), {"PATH": "/usr/bin"})]
    rows.append(("nvct (C)", str(bench.c / name), bench.env("c", str(bench.noop))))
    if bench.hot:
        rows.append(("nvct (static)", str(bench.hot / name), bench.env("st", str(bench.noop))))
    if bench.peer:
        env = bench.peer_env("pj", str(bench.noop), "auto")
        rows.append(("peer default", str(bench.peer / name), env))
    document = bench.document("0")
    print(f"  {count} creates at once, wall ms until the last is done (best of 5)")
    for label, program, env in rows:
        best = min(_burst_once(bench, program, env, document, count) for _ in range(5))
        print(f"    {label:14} {best:8.0f}")


def _burst_once(
    bench: Bench, program: str, env: dict[str, str], document: bytes, count: int
) -> float:
    folders = []
    for number in range(count):
        folder = bench.bundles.folder(f"burst-{number}")
        (folder / "config.json").write_bytes(document)
        folders.append(folder)
    started = time.perf_counter()
    pids = [
        measure.spawn([program, "create", "--bundle", str(folder), f"b{folder.name}"], env)
        for folder in folders
    ]
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit(f"{program} failed in a burst")
    return (time.perf_counter() - started) * 1000


def _specs(bench: Bench) -> None:
    """Write the specs that the CDI modes and the hooks need."""
    Path("/etc/cdi").mkdir(exist_ok=True)
    ctk = shutil.which("nvidia-ctk")
    assert ctk
    hook = str(bench.c / "nvidia-cdi-hook")
    command = ["cdi", "generate", "--driver-root", DRIVER_ROOT, "--output"]
    own = [ctk, *command, "/var/run/cdi/nvct.json", "--nvidia-cdi-hook-path", hook]
    subprocess.run(own, check=True, stderr=subprocess.DEVNULL)
    best = bench.hot or bench.c
    for layout in ("farm", "classic"):  # in no folder that a mode reads
        path = str(bench.work / f"{layout}.json")
        words = [path, "--layout", layout, "--nvidia-cdi-hook-path", f"{best}/nvidia-cdi-hook"]
        env = {**os.environ, **bench.farm_env("spec", bench.runc)}
        subprocess.run([ctk, *command, *words], check=True, stderr=subprocess.DEVNULL, env=env)
        bench.specs[f"nvct {layout}"] = path
    if bench.peer:
        # In a folder of lower priority; the incumbent's cdi mode finds its kind there.
        path = "/etc/cdi/peer.json"
        hook = str(bench.peer / "nvidia-cdi-hook")
        subprocess.run(
            [str(bench.peer / "nvidia-ctk"), *command, path, "--nvidia-cdi-hook-path", hook],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        bench.specs["peer"] = path


def main() -> None:
    """Print all groups."""
    bench = Bench(Path(sys.argv[1]))
    _specs(bench)
    print(f"nvct bench: {ROUNDS} interleaved rounds, ms; GPUs are simulated, runc is real")
    _noop_group(bench, "hand-over: state", None, ["state", "x"])
    _noop_group(bench, "create, no GPU asked for", None, ["create"])
    _noop_group(bench, "create, 1 GPU", "0", ["create"])
    _noop_group(bench, "create, 8 GPUs", "all", ["create"])
    _hook_group(bench)
    _container_group(bench, "create + start + delete, 1 GPU", "0")
    _container_group(bench, "create + start + delete, 8 GPUs", "all")
    bench.more_env = ["NVIDIA_DRIVER_CAPABILITIES=compute,utility"]  # as in CUDA images
    _container_group(bench, "create + start + delete, 1 GPU, compute and utility", "0")
    bench.more_env = []
    _engine_group(bench, "the engine's own CDI: create + start + delete, 1 GPU", "0")
    _engine_group(bench, "the engine's own CDI: create + start + delete, 8 GPUs", "all")
    _burst(bench)
