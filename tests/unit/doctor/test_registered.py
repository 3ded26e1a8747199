# SPDX-License-Identifier: Apache-2.0
"""What is said of engines: by which way their containers get GPUs, and when that is a fault."""

from dataclasses import replace
from pathlib import Path

import pytest

from nvct.cdi.read import registry
from nvct.doctor import engine_access, registered
from nvct.engine import detect
from nvct.engine.model import Files, State
from nvct.engine.status import Status, of
from tests.unit.doctor import unread_files as unread_engine_files
from tests.unit.doctor.broken_nodes import write
from tests.unit.doctor.statuses import check, engine, in_force, status
from tests.unit.doctor.unread_files import CRIO, UNREAD

SPEC = (
    "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"
    "devices: [{name: all, containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}]\n"
)
PROGRAM = "/usr/bin/nvidia-container-runtime"


def test_a_registered_runtime_is_fine_and_a_missing_program_is_not() -> None:
    assert check().health == "absent"
    fine = check(status(engine(), ("nvidia",)))
    assert (fine.health, fine.lines) == ("ok", ("docker 28.5.2: nvidia",))
    bad = check(status(engine(), ("nvidia",), missing=("nvidia",)))
    assert bad.health == "attention"
    assert "/usr/bin/nvidia-container-runtime, is not there" in bad.lines[1]


def test_engines_of_containers_and_other_users_are_not_this_nodes() -> None:
    other = Status(engine=replace(engine(), version="", leave=True, foreign=True))
    assert check(other).health == "absent"
    assert check(other).lines == ("none on this host, 1 engine of a container or another user",)
    assert check(status(engine(), ("nvidia",)), other, other).lines == (
        "docker 28.5.2: nvidia", "2 engines of a container or another user, not checked",
    )  # fmt: skip


def test_an_engine_that_can_give_no_gpu_is_a_fault_where_there_is_one() -> None:
    part = check(status(engine(), cdi=False))

    assert part.health == "attention"
    (finding,) = part.findings
    assert finding.evidence == "docker 28.5.2: no NVIDIA runtime, and no GPU by CDI: CDI is off"
    assert finding.remedy == "Run `nvct runtime configure --runtime=docker`."
    without = check(status(engine(), cdi=False), gpu=False)
    assert (without.health, [one.severity for one in without.findings]) == ("absent", ["note"])


@pytest.mark.parametrize(
    ("devices", "named"),
    [(("acme.com/nic=0", "nvidia.com/gpu=0", "nvidia.com/gpu=all"), "all"),
     (("nvidia.com/gpu=7",), "7")],
)  # fmt: skip
def test_where_cdi_works_the_runtime_is_said_to_fail(devices: tuple[str, ...], named: str) -> None:
    part = check(status(engine(), running=in_force(devices, cdi=True)))

    assert (part.health, [one.severity for one in part.findings]) == ("ok", ["note"])
    assert part.lines == (
        (
            f"docker 28.5.2: no NVIDIA runtime; `--device nvidia.com/gpu={named}` by CDI gives "
            "GPUs, `--runtime=nvidia` fails until `nvct runtime configure --runtime=docker`"
        ),
    )
    of_command_line = State(handlers={"nvidia": PROGRAM}, cdi=False)
    running = replace(in_force((), cdi=False), state=of_command_line)
    assert check(status(engine(), running=running)).lines == ("docker 28.5.2: nvidia",)


def test_what_this_user_cannot_see_is_not_blamed() -> None:
    problem = "/root/x cannot be read: Permission denied"
    for hidden in (
        Status(engine=engine()),
        status(engine(version="")),
        Status(engine=engine(), problem=problem, is_closed=True),
    ):
        part = check(hidden)
        assert (part.health, [one.severity for one in part.findings]) == ("ok", ["unknown"])
    assert check(Status(engine=engine(), problem="/root/x is no JSON")).health == "attention"


def test_an_idle_engine_is_needed_only_if_no_other_gives_gpus() -> None:
    idle = status(engine("podman", "5.2.0", pid=0), cdi=True)

    beside = check(status(engine(), ("nvidia",)), idle)
    alone = check(idle)

    assert (beside.health, alone.health) == ("ok", "attention")
    assert alone.findings[0].remedy == "Run `nvct publish`."


@pytest.mark.parametrize("pods", [False, True])
def test_a_containerd_that_serves_docker_or_is_gkes_needs_no_runtime(*, pods: bool) -> None:
    docker = status(engine(), ("nvidia",))
    containerd = status(engine("containerd", "1.7.24", pid=700), cdi=False)
    of_gke = status(engine("containerd", "1.7.24", platform="GKE"), cdi=False)

    assert check(containerd, docker, pods=pods).health == ("attention" if pods else "ok")
    assert check(of_gke, pods=True).health == "ok"


def test_a_specification_counts_if_the_engine_reads_its_folder_and_version(tmp_path: Path) -> None:
    folder = write(tmp_path, "cdi/nvidia.yaml", SPEC).parent
    specs = registry.scan([str(folder)])
    state = State(handlers={}, cdi=True, spec_dirs=(str(folder),))
    podman = Status(engine=engine("podman", "5.2.0", pid=0), state=state)

    assert engine_access.of(podman, specs).cdi is True
    elsewhere = replace(podman, state=replace(state, spec_dirs=("/etc/cdi",)))
    assert (
        engine_access.of(elsewhere, specs).why == "no specification of nvidia.com/gpu in /etc/cdi"
    )
    old = replace(podman, engine=engine("podman", "4.0.0", pid=0))
    refused = engine_access.of(old, specs)
    assert refused.cdi is False
    assert refused.remedy == "Use `--runtime=nvidia` with podman 4.0.0, or update it."


@pytest.mark.parametrize("name", ["containerd", "crio"])
def test_a_dra_driver_may_write_the_specification_of_pods(name: str) -> None:
    part = check(status(engine(name, "2.1.0", pid=700), cdi=True), pods=True)

    assert [one.severity for one in part.findings] == ["unknown"]
    assert "unless a DRA driver writes its own" in part.lines[0]


@pytest.mark.parametrize(
    ("kind", "gives"),
    [("k8s.gpu.nvidia.com/claim", True), ("management.nvidia.com/gpu", False), ("a.io/b", False)],
)
def test_specifications_of_plugins_count(kind: str, *, gives: bool, tmp_path: Path) -> None:
    folder = write(tmp_path, "cdi/x.yaml", SPEC.replace("nvidia.com/gpu", kind)).parent
    state = State(handlers={}, cdi=True, spec_dirs=(str(folder),))
    found = Status(engine=engine("podman", "5.2.0", pid=0), state=state)

    assert engine_access.of(found, registry.scan([str(folder)])).cdi is gives


def test_a_hook_on_dockers_path_serves_gpus(tmp_path: Path) -> None:
    write(tmp_path, "bin/nvidia-container-runtime-hook").chmod(0o755)

    part = check(status(engine(path=str(tmp_path / "bin")), cdi=False))

    assert part.health == "ok"
    assert "`--gpus` by its hook gives GPUs, `--runtime=nvidia` fails" in part.lines[0]


def unread(home: Path, name: str, config: str = "") -> list[tuple[str, str]]:
    found = unread_engine_files.look(home, name, config)
    return [(one.severity, one.evidence) for one in found]


@pytest.mark.parametrize("name", UNREAD)
def test_a_file_that_the_running_engine_does_not_read(name: str, tmp_path: Path) -> None:
    config, path, _ = UNREAD[name]

    (finding,) = unread_engine_files.findings(tmp_path, name)

    severity, evidence = finding.severity, finding.evidence

    assert severity == "error"
    assert evidence.startswith(f"{name.partition(chr(39))[0]} (process 812) reads {config}")
    assert evidence.endswith(f", not /{path}, which registers nvidia")


@pytest.mark.parametrize("name", ["crio", "containerd", "docker"])
def test_a_file_that_is_read_is_no_fault_under_any_name(name: str, tmp_path: Path) -> None:
    config, path, text = UNREAD[name]
    if name == "crio":
        (tmp_path / "etc/crio").mkdir(parents=True)
        (tmp_path / "etc/crio/crio.conf.d").symlink_to(tmp_path / "srv/crio.conf.d")
        write(tmp_path, "srv/crio.conf.d/99-nvidia.toml", text)
    else:
        real = write(tmp_path, config[1:], text)
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).symlink_to(real)

    assert unread(tmp_path, name, config) == []


def test_a_leftover_beside_a_registered_runtime_is_a_note(tmp_path: Path) -> None:
    write(tmp_path, "etc/crio/conf.d/99-nvidia.toml", CRIO)
    write(tmp_path, "etc/crio/crio.conf", CRIO)

    ((severity, _),) = unread(tmp_path, "crio", "/etc/crio/crio.conf")

    assert severity == "note"


@pytest.mark.parametrize(
    "text", ["\xff\xfe", "[[", "crio = 1\n", "[crio.runtime]\nruntimes = 3\n"]
)
def test_files_that_cannot_be_read_are_not_blamed(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "etc/crio/conf.d"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(text.encode("latin-1"))
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    (folder / "b\udcff").symlink_to("/dev/zero")

    assert unread(tmp_path, "crio's conf.d", "/etc/crio/crio.conf") == []


def process(home: Path, *words: str, env: str = "") -> None:
    """Write procfs's files of an engine's process."""
    for name, text in {
        "cmdline": "\0".join(words) + "\0",
        "environ": env,
        "stat": "812 (x) S " + " ".join(["1"] * 30),
        "status": "Uid:\t0\t0\t0\t0\n",
        "cgroup": "0::/system.slice/x.service\n",
    }.items():
        write(home, f"proc/812/{name}", text)
    (home / "proc/812/exe").symlink_to(f"/usr/bin/{words[0]}")
    (home / "proc/812/root").symlink_to(home / "host")


@pytest.mark.parametrize(
    ("words", "env", "path", "reads"),
    [
        ("crio --config-dir=/srv/d", "", "crio/crio.conf.d/9", "/etc/crio/crio.conf and /srv/d"),
        (
            "crio", "CONTAINER_CONFIG=/srv/c\0CONTAINER_CONFIG_DIR=/srv/d\0",
            "crio/crio.conf", "/srv/c and /srv/d",
        ),
        ("crio -d ", "", "crio/conf.d/9", "/etc/crio/crio.conf and /etc/crio/crio.conf.d"),
        ("containerd -c /srv/c.toml", "", "containerd/config.toml", "/srv/c.toml"),
    ],
)  # fmt: skip
def test_what_an_engine_reads_is_taken_from_its_process(
    words: str, env: str, path: str, reads: str, tmp_path: Path
) -> None:
    process(tmp_path, *words.split(" "), env=env)
    text = UNREAD[path.partition("/")[0]][2]
    write(tmp_path, f"host/etc/{path}", text)
    files = Files(str(tmp_path / "host"))
    (found,) = [
        one
        for one in detect.engines(files, lambda *_: "crio version 1.33.0", str(tmp_path / "proc"))
        if one.pid
    ]

    shown = of(found, files, unread_engine_files.silent)
    (finding,) = registered.of_unread_files([shown], files)

    assert finding.severity == "error"
    assert f"(process 812) reads {reads}, not /etc/{path}, which" in finding.evidence


def test_without_a_gpu_an_engine_without_a_way_to_one_is_neither_well_nor_a_fault() -> None:
    podman = status(engine("podman", "4.3.1", pid=0), cdi=True)

    assert check(podman, gpu=False).health == "absent"
    assert check(status(engine(), ("nvidia",)), podman, gpu=False).health == "ok"
