# SPDX-License-Identifier: Apache-2.0
"""Files of containerd that are valid and do not fit together."""

from pathlib import Path

import pytest

from nvct.cli.runtime import status as runtime_status
from nvct.engine import containerd, status
from nvct.engine import status as faults
from nvct.engine.model import Engine, EngineOptions, Handler
from nvct.errors import NvctError
from tests.unit.doctor import statuses
from tests.unit.engine.tree import Tree

MAIN, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]'
REAL = Path(__file__).parents[2] / "engineconf/containerd"
V2, V3 = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"
MAIN_V2 = f"""version = 2
{IMPORTS}
[{V2}]
sandbox_image = "registry.k8s.io/pause:3.9"
[{V2}.cni]
bin_dir = "/home/kubernetes/bin"
"""
PROGRAM = "/usr/bin/nvidia-container-runtime"


def drop_in(version: int, cri: str, more: str = 'runtime_type = "io.containerd.runc.v2"') -> str:
    runtime = f"{cri}.containerd.runtimes.nvidia"
    return f'version = {version}\n[{runtime}]\n{more}\n[{runtime}.options]\nBinaryName = "{PROGRAM}"\n'


CASES = {
    "a drop-in of a higher version than containerd 2's main file": (
        "2.1.9", MAIN_V2, drop_in(3, V3), True,
        f"grpc.v1.cri'] of {MAIN}: {DROP_IN} makes it version 3",
    ),
    "a drop-in of a version that containerd 1.7 does not know": (
        "1.7.24", MAIN_V2, drop_in(3, V3), True,
        f"cri.v1.runtime'] of {DROP_IN}: it reads io.containerd.grpc.v1.cri",
    ),
    "a drop-in that replaces the table of containerd 1.7": (
        "1.7.24", MAIN_V2, drop_in(2, V2), False,
        f"replaces the CRI settings of {MAIN}: not in force: sandbox_image, cni.bin_dir",
    ),
    "imports that were lost": (
        "1.7.24", MAIN_V2.replace(IMPORTS, ""), drop_in(2, V2), False,
        f"{DROP_IN} registers NVIDIA's runtime, but no file imports it",
    ),
    "a runtime without a type": (
        "2.1.9", MAIN_V2, drop_in(2, V2, ""), True, "its runtime nvidia has no runtime_type",
    ),
}  # fmt: skip
FINE = {
    "containerd 2 merges": ("2.1.9", MAIN_V2, drop_in(2, V2)),
    "a copy of the whole table, with another default": (
        "1.7.24",
        MAIN_V2 + f'[{V2}.containerd]\ndefault_runtime_name = "runc"\n',
        drop_in(2, V2) + MAIN_V2.partition(IMPORTS)[2]
        + f'[{V2}.containerd]\ndefault_runtime_name = "nvidia"\n',
    ),
    "containerd's own table of streaming": (
        "2.1.9",
        f"version = 3\n{IMPORTS}\n[{V2}]\ndisable_tcp_service = true\n[{V3}]\n",
        drop_in(3, V3),
    ),
    "a drop-in of somebody else that is not imported": (
        "1.7.24", "version = 2\n", f"[{V2}]\nsandbox_image = 'x'\n",
    ),
    "no main file": ("2.1.9", None, drop_in(3, V3)),
    "a file that is no TOML, which another check tells": ("2.1.9", MAIN_V2, "["),
}  # fmt: skip


def found(folder: Path, version: str, main: str | None, more: str) -> list[faults.Fault]:
    tree = Tree(folder).write(DROP_IN, more)
    if main is not None:
        tree.write(MAIN, main)
    engine = Engine(engine="containerd", version=version, config=MAIN)
    return faults.faults_of(status.options_for(engine), tree)


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_told(name: str, tmp_path: Path) -> None:
    version, main, more, is_severe, evidence = CASES[name]

    (fault,) = found(tmp_path, version, main, more)

    assert evidence in fault.text
    assert fault.is_severe is is_severe


@pytest.mark.parametrize("name", FINE)
def test_files_that_fit_together_have_none(name: str, tmp_path: Path) -> None:
    assert found(tmp_path, *FINE[name]) == []


@pytest.mark.parametrize("version", [(1, 6, 20), (1, 7, 24), (2, 1, 9)])
@pytest.mark.parametrize("path", sorted(REAL.glob("*.toml")), ids=lambda path: path.name)
def test_nvct_adds_no_fault_to_a_real_configuration(
    path: Path, version: tuple[int, ...], tmp_path: Path
) -> None:
    tree = Tree(tmp_path).write(MAIN, path.read_bytes())
    handler = Handler(name="nvidia", path=PROGRAM)
    asked = EngineOptions(
        engine="containerd", handlers=(handler,), config=MAIN, engine_version=version
    )
    before = faults.faults_of(asked, tree)
    try:
        tree.apply(containerd.plan(asked, tree))
    except NvctError:
        return

    assert [fault for fault in faults.faults_of(asked, tree) if fault not in before] == []


def test_the_doctor_and_the_status_show_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path).write(MAIN, MAIN_V2).write(DROP_IN, drop_in(3, V3)).write(PROGRAM, "")
    (tmp_path / PROGRAM[1:]).chmod(0o755)
    engine = Engine(engine="containerd", version="2.1.9", config=MAIN, root=tree.root)

    shown = status.of(engine, tree)
    part = statuses.check(shown, pods=True)

    assert [finding.reason.name for finding in part.findings if finding.is_fault] == [
        "EngineConfigurationInvalid"
    ]
    assert part.health == "attention"
    assert f"problem:   {shown.faults[0].text}" in runtime_status.text(shown)
