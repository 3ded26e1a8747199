# SPDX-License-Identifier: Apache-2.0
"""The bundle, unpacked where there is no fitting Python and no fitting C library, and used."""

import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from nvct import version
from tests.hostile import hook_attack
from tests.integration import bundles
from tests.integration.conftest import SimulatedNode
from tests.support import bundled
from tests.support.processes import captured

pytestmark = [pytest.mark.engine, pytest.mark.slow]
REPOSITORY = Path(__file__).parents[2]
# The low-level runtime of a host whose C library is musl: here it only tells how it was called.
ONLY_TOLD = r"""
LD_PRELOAD=/lib/not.so LC_ALL=C nvidia-container-runtime create --bundle "$work/gpu" gpu
cp "$work/gpu/config.json" "$work/changed.json"
/opt/nvidia/toolkit/nvidia-container-runtime create --bundle "$work/gpu" again
"""
ATTACKED = r"""
for folder in "$bin" /opt/nvidia/toolkit; do
    "$bin/nvct-python" -I "$work/hook_attack.py" "$work" $folder/nvidia-cdi-hook $folder/nvidia-ctk \
        $folder/nvct $folder/nvidia-container-runtime-hook $folder/nvidia-container-toolkit
done
"""
RUNC = '#!/bin/sh\necho "runc $*"\nenv | grep -E "^(LD_|PYTHON|NVCT|LC_)"\nexit 0\n'
USED = """
import json, sys, yaml, pynvml, nvct.cli.main
maps = [line.rstrip("\\n").split(maxsplit=5)[-1] for line in open("/proc/self/maps") if ".so" in line]
files = [m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)]
print(json.dumps(sorted({*sys.path, sys.executable, *maps, *files})))
"""
IMPORT_ALL = """
import importlib, pkgutil, nvct
names = [m.name for m in pkgutil.walk_packages(nvct.__path__, 'nvct.')]
for name in names:
    # The agent and the NRI plugin need libraries of the extra.
    if not name.endswith('__main__') and not name.startswith(('nvct.agent', 'nvct.nri')):
        importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked bundle, without nvct-hot: its Python does the same."""
    place = tmp_path_factory.mktemp("unpacked")
    words = ("-C", place, "--exclude=*/libexec/nvct-hot")
    captured(["tar", "-xzf", bundled.archive(), *words], check=True)
    return next(place.iterdir())


def test_containers_with_gpus_start_on_an_older_c_library(
    bundle: Path, simulated: SimulatedNode, tmp_path: Path
) -> None:
    # Debian 11: glibc 2.31, the oldest that Debian's mirrors still have. It is not used anyway.
    root = bundles.bare(tmp_path, "bullseye", "libc6", "runc")

    said = bundles.said_in(root, bundle, simulated, bundles.CONTAINERS)

    assert len(re.findall(r"^GPU 0: NVIDIA H100.*UUID: GPU-", said, re.MULTILINE)) == 2
    assert "plain container" in said
    assert "runc version 1.0.0" in said


def test_it_runs_where_the_c_library_is_musl(
    bundle: Path, simulated: SimulatedNode, tmp_path: Path
) -> None:
    root = bundles.bare(tmp_path, "bookworm", "musl")
    runc = root / "bin/runc"
    runc.write_text(RUNC, encoding="utf-8")
    runc.chmod(0o755)

    said = bundles.said_in(root, bundle, simulated, ONLY_TOLD)

    assert f"runc create --bundle {simulated.work}/gpu gpu" in said
    assert f"runc create --bundle {simulated.work}/gpu again" in said
    # What the loader of the bundle is told is not told to other programs.
    assert not re.search(
        r"^(LD_LIBRARY_PATH|PYTHON|NVCT(?!_CONFIG_FILE_PATH=))", said, re.MULTILINE
    )
    assert re.search(r"^LC_ALL=C$", said, re.MULTILINE)
    changed = json.loads((simulated.work / "changed.json").read_text(encoding="utf-8"))
    assert "/dev/nvidia0" in [device["path"] for device in changed["linux"]["devices"]]
    assert any(mount["destination"].endswith("/nvidia-smi") for mount in changed["mounts"])
    assert "hooks" not in changed, "the shim does a hook's work in the root"


def test_no_variable_of_an_image_has_a_say_in_a_hook(
    bundle: Path, simulated: SimulatedNode, tmp_path: Path
) -> None:
    root = bundles.bare(tmp_path, "bullseye", "libc6", "runc")
    hook_attack.build(simulated.work)
    shutil.copy(hook_attack.__file__, simulated.work)

    said = bundles.said_in(root, bundle, simulated, ATTACKED)

    assert said.count(" containers, 0 wrong") == 2


def inside(root: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    def enter() -> None:
        os.chroot(root)
        os.chdir("/")

    if os.geteuid():
        pytest.skip("only root can have another root")
    return captured(command, preexec_fn=enter, env={})


def test_it_runs_in_an_empty_root(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "nvct", copy_function=os.link)

    cold = inside(tmp_path, ["/nvct/bin/nvidia-ctk", "--version"])
    hot = inside(tmp_path, ["/nvct/bin/nvidia-container-runtime", "--version"])

    assert (cold.stdout, cold.stderr) == (version.text("NVIDIA Container Toolkit CLI"), "")
    assert hot.stdout.startswith(version.text("NVIDIA Container Runtime"))


def ask(*command: str | Path, env: Mapping[str, str] | None = None) -> str:
    done = captured(command, env=env or {}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def moved(bundle: Path, place: Path) -> Path:
    shutil.copytree(bundle, place, copy_function=os.link)
    return place


def test_a_moved_bundle_uses_nothing_but_itself(bundle: Path, tmp_path: Path) -> None:
    place = moved(bundle, tmp_path / "a b\"c'd")
    (tmp_path / "yaml.py").write_text("raise SystemExit('not this one')\n", encoding="utf-8")
    env = {
        "PYTHONHOME": "/nowhere", "PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": "/lib",
        "LD_PRELOAD": str(tmp_path / "yaml.py"), "LD_AUDIT": str(tmp_path / "yaml.py"),
    }  # fmt: skip

    used: list[str] = json.loads(ask(place / "bin/nvct-python", "-c", USED, env=env))

    assert len(used) > 20
    assert [path for path in used if not path.startswith(f"{place}/")] == []


def test_links_to_its_programs_work(bundle: Path, tmp_path: Path) -> None:
    for name in ("nvct", "nvidia-container-runtime"):
        (tmp_path / name).symlink_to(bundle / "bin" / name)
    (tmp_path / "any").symlink_to(bundle / "bin/nvidia-ctk")

    assert ask(tmp_path / "nvct", "--version") == "nvct, version 0.1.0\n"
    assert ask(tmp_path / "any", "--version") == version.text("NVIDIA Container Toolkit CLI")
    assert "NVIDIA Container Runtime" in ask(tmp_path / "nvidia-container-runtime", "--version")


def test_the_static_hot_side_is_used_where_it_is_there(bundle: Path, tmp_path: Path) -> None:
    place = moved(bundle, tmp_path / "nvct")
    hot = place / "libexec/nvct-hot"
    hot.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n", encoding="utf-8")
    hot.chmod(0o755)

    said = ask(place / "bin/nvidia-cdi-hook", "update-ldcache", "--folder", "/a b")

    cold = str(place / "bin/nvct-python")
    assert said.splitlines() == [
        "--cold", cold, "nvidia-cdi-hook", "update-ldcache", "--folder", "/a b"
    ]  # fmt: skip


@pytest.mark.parametrize("character", [":", ";", "$"])
def test_a_path_that_its_loader_would_take_apart_is_refused(
    character: str, bundle: Path, tmp_path: Path
) -> None:
    place = moved(bundle, tmp_path / f"a{character}b")

    done = captured([place / "bin/nvct", "--version"])

    assert done.returncode == 1
    assert done.stderr.startswith(f"nvct: cannot run from {place}/bin/nvct: ")


def test_a_bundle_with_a_part_missing_says_which(bundle: Path, tmp_path: Path) -> None:
    place = moved(bundle, tmp_path / "part")
    loader = next(place.glob("lib/ld-*"))
    loader.unlink()

    done = captured([place / "bin/nvct", "--version"])

    assert done.returncode == 1
    assert done.stderr == f"nvct: cannot start {loader}: No such file or directory\n"


def test_every_module_has_what_it_imports(bundle: Path) -> None:
    assert int(ask(bundle / "bin/nvct-python", "-c", IMPORT_ALL)) > 200


def test_nothing_is_in_it_that_another_python_has_compiled(bundle: Path) -> None:
    tags = {path.name.split(".")[-2] for path in bundle.rglob("*.pyc")}
    assert len(tags) == 1, tags


def test_every_file_is_somebodys_and_root_alone_may_write(bundle: Path) -> None:
    table = (bundle / "licenses/README.md").read_text(encoding="utf-8")

    with tarfile.open(bundled.archive()) as tar:
        members = tar.getmembers()

    assert {(m.uid, m.gid) for m in members} == {(0, 0)}
    assert {m.mode for m in members} == {0o755, 0o644}
    assert not [m.name for m in members if m.issym()]
    for name in ("libc6", "libgcc-s1", "python3.11-minimal", "zlib1g"):
        if name in table:
            assert (bundle / f"licenses/{name}.txt").stat().st_size
    assert (bundle / "licenses/common-licenses/LGPL-2.1").exists()
    wheels = {p.name.partition("-")[0].lower() for p in bundle.rglob("*.dist-info")}
    assert {"click", "pyyaml", "jsonschema", "rich", "nvidia_ml_py"} <= wheels
    for text in re.findall(r"`(?:\.\./)?([^`]+\.(?:txt|md)|[^`]*LICEN[SC]E[^`]*)`", table):
        assert (bundle / text).exists() or (bundle / "licenses" / text).exists(), text


def test_the_same_files_are_packed_to_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    first = moved(bundle / "licenses", tmp_path / "a/same")
    second = tmp_path / "b/same"
    shutil.copytree(first, second)  # later, in another order

    made = [pack(folder, folder.with_suffix(".tar.gz")) for folder in (first, second)]

    assert made[0] == made[1]


def pack(root: Path, out: Path) -> bytes:
    spec = spec_from_file_location("archive", REPOSITORY / "packaging/bundle/archive.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    data: bytes = module.pack(root, out, 1).read_bytes()
    return data
