# SPDX-License-Identifier: Apache-2.0
"""The Makefile names files that exist; each target is run by something; what workers share."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from nvct.errors import ContainerNotPossibleError
from tests.conftest import TOGETHER, unit_of
from tests.support import fetch_pip, mmdebstrap
from tests.support.processes import captured

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
PHONY = sorted(re.findall(r"^\.PHONY: (.*)$", TEXT, re.M)[0].split())
RULE = r"^([a-z-]+):([^=#\n]*).*\n((?:\t.*\n)*)"
RULES = {name: (needs.split(), recipe) for name, needs, recipe in re.findall(RULE, TEXT, re.M)}
RUN_BY = {
    "fmt": ("ruff format", ""), "bench": ("tests.bench", ""),
    "demo": ("nvct demo", "tests/integration/test_demo.py"),
    "demo-kubernetes": ("tests.kubernetes.demo", "tests/kubernetes/test_demo.py"),
    "cluster": ("tests.kubernetes.playground up", "tests/kubernetes/test_playground.py"),
    "cluster-down": ("tests.kubernetes.playground down", "tests/kubernetes/test_playground.py"),
    "record-peer": ("tests.peer", "tests/peer/test_program.py"),
    "golden": ("--update-golden", "tests/startup/test_modules.py"),
    "fuzz": ("tests.fuzz", "tests/fuzz/test_fuzz.py"), "gpu": ("tests.gpu", "tests/gpu/test_gpu.py"),
    "gpu-kit": ("kit", "tests/gpu/test_record.py"),
    "likeness": ("likeness", "tests/gpu/test_record.py"),
    "install": ("packaging/install.sh", "packaging/deb/debian/rules"),
    "release": ("packaging/release/build.py", "tests/support/released.py"),
    "manifests": ("render.py", "tests/kubernetes/test_chart_values.py"),
}  # fmt: skip
"""What targets run that `make ci-full` does not reach, and what else runs it; "" is a recipe."""


def reached(name: str) -> set[str]:
    needs, recipe = RULES[name]
    for words in re.findall(r"\$\(MAKE\)([^;&|]*)", recipe):
        needs = [*needs, *words.split()]
    return {name}.union(*map(reached, RULES.keys() & needs))


def test_what_it_names_exists() -> None:
    paths = re.findall(r"(?<![\w$./-])(?:tests|packaging|nvct)/[\w./-]+", TEXT)
    modules = [f"{name.replace('.', '/')}*" for name in re.findall(r"-m (tests[\w.]+)", TEXT)]
    assert [path for path in paths + modules if not any(ROOT.glob(path))] == []


def test_help_has_each_target() -> None:
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    explained = re.findall(r"^ +make ([a-z-]+) +\w", shown.stdout.decode(), re.M)
    assert sorted(explained) == sorted(RULES) == PHONY


def test_each_target_is_run_by_something() -> None:
    by_make = reached("ci-full") | reached("release")
    assert sorted(by_make | {"help", "clean"} | RUN_BY.keys()) == PHONY
    recipes = "".join(RULES[name][1] for name in reached("ci-full"))
    for name, (command, path) in RUN_BY.items():
        assert command in RULES[name][1], name
        assert command in ((ROOT / path).read_text() if path else recipes), name


def test_workflows_run_targets_and_what_those_need_before() -> None:
    before = r"apt-get update .*|git config .*|printf %s \"\$KEY\" \| gpg --batch --import"
    found = []
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        (job,) = yaml.safe_load(path.read_text())["jobs"].values()
        commands = [step["run"] for step in job["steps"] if "run" in step]
        found += [line for line in commands if not re.fullmatch(before, line)]
    targets = [re.match(r"make ([a-z-]+)", line) for line in found]
    assert len(targets) > 1
    assert {target and target[1] for target in targets} <= RULES.keys(), found


def test_clean_leaves_the_sources(tmp_path: Path) -> None:
    for name in ("nvct", "build/static", "dist", ".venv/bin", ".hypothesis"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["make", "-s", "-f", ROOT / "Makefile", "clean"], cwd=tmp_path, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["nvct"]


def test_one_worker_runs_a_file_or_a_folder_whose_files_share_a_cluster() -> None:
    assert unit_of("tests/unit/test_a.py::test_b[x::y]") == "tests/unit/test_a.py"
    for folder in TOGETHER:
        files = sorted((ROOT / folder).glob("test_*.py"))
        assert len(files) > 1
        assert {unit_of(f"{path.relative_to(ROOT)}::test_x[y]") for path in files} == {folder}
        conftest = (ROOT / folder / "conftest.py").read_text(encoding="utf-8")
        assert "from tests.kubernetes.together import" in conftest


# `make setup`: what it installs, what it says, and that a second attempt mends the first.


SUPPORT = Path(__file__).parents[1] / "support"
PYTHON = """#!/bin/sh
echo "$(basename "$(dirname "$(dirname "$0")")") $*" >> "$LOG"
case "$1 $2" in
"-c import ensurepip") [ -z "$NO_ENSUREPIP" ] ;;
"-m venv") for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; : > "$last/pip" ;;
"-m pip") [ -e "$(dirname "$0")/../pip" ] ;;
esac
"""


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Setup:
    """Runs venv.sh with a Python that only writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.venv = folder / "venv"
        self.python = folder / "system/bin/python3"
        self.log = folder / "log"
        script(self.python, PYTHON)

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        return captured(
            ["bash", SUPPORT / "venv.sh", self.venv, self.python],
            env={**os.environ, "LOG": str(self.log), "NO_ENSUREPIP": "", **env},
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_an_environment_is_made_once(setup: Setup) -> None:
    first = setup.run()

    assert f"system -m venv {setup.venv}" in setup.calls
    assert setup.calls[-1].startswith("venv -m pip install ")
    assert (first.returncode, first.stderr.splitlines()[0].split()[0]) == (0, "making")
    assert setup.run().returncode == 0
    assert not [call for call in setup.calls if call.startswith("system -m venv")]


def test_an_environment_without_pip_is_made_again(setup: Setup) -> None:
    script(setup.venv / "bin/python", PYTHON)  # python3-venv was missing: no pip
    (setup.venv / "left").touch()

    assert setup.run().returncode == 0
    assert f"system -m venv {setup.venv}" in setup.calls
    assert not (setup.venv / "left").exists()


def test_without_ensurepip_pip_comes_from_the_index(setup: Setup) -> None:
    assert setup.run(NO_ENSUREPIP="1").returncode == 0
    assert f"system -m venv --without-pip {setup.venv}" in setup.calls
    assert any(call.endswith("/fetch_pip.py") for call in setup.calls)


def test_a_python_that_is_none_is_said(tmp_path: Path) -> None:
    done = captured(["bash", SUPPORT / "venv.sh", tmp_path / "venv", "/no/python"])
    assert done.returncode == 1
    assert "no Python 3.10 or later is /no/python; install python3" in done.stderr


def test_pip_is_the_newest_final_release() -> None:
    def file(name: str, **more: object) -> dict[str, object]:
        return {"filename": name, "url": f"u/{name}", "hashes": {"sha256": name}, **more}

    names = ("pip-9.0-py3-none-any.whl", "pip-26.1b1-py3-none-any.whl", "pip-27.0.tar.gz")
    newest, yanked = "pip-25.10-py3-none-any.whl", "pip-26.0-py3-none-any.whl"
    files = [*map(file, names), file(newest), file(yanked, yanked="broken")]

    assert fetch_pip.release({"files": files}) == (f"u/{newest}", newest)


class Packages:
    """Runs packages.sh on a Debian of fake programs on which nothing is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.log = folder / "log"
        for name in ("bash", "grep", "env"):
            script(self.folder / name, f'#!/bin/sh\nPATH=/usr/bin:/bin exec {name} "$@"\n')
        self.put("dpkg-query", "echo not-installed gcc; echo installed crun")
        self.put("id", "echo 0")
        self.put("apt-get", 'echo "$@" >> "$LOG"')
        self.put("apt-cache", '[ "$2" != podman ]')
        (self.folder / "env").unlink()
        self.put("env", 'shift; exec "$@"')

    def put(self, name: str, text: str) -> None:
        script(self.folder / name, f"#!/bin/sh\n{text}\n")

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return captured(
            ["/bin/bash", SUPPORT / "packages.sh", *more],
            stdin=subprocess.DEVNULL,
            env={"PATH": str(self.folder), "LOG": str(self.log)},
        )


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    return Packages(tmp_path)


def test_what_is_missing_is_installed_and_said(packages: Packages) -> None:
    done = packages.run("mmdebstrap")

    assert (done.returncode, done.stdout) == (0, "")
    words = "gcc libc6-dev python3-venv runc busybox-static mmdebstrap"
    assert done.stderr.splitlines() == ["apt-get update", f"apt-get install {words}"]
    assert packages.log.read_text().splitlines()[-1].endswith(f"install-recommends {words}")


def test_a_package_that_the_release_lacks_costs_only_itself(packages: Packages) -> None:
    done = packages.run("podman")

    assert done.returncode == 0
    assert "podman" not in packages.log.read_text()
    assert done.stderr.splitlines()[-1].startswith("warning: this release lacks: podman")


def test_who_is_not_root_is_told_what_is_missing(packages: Packages) -> None:
    packages.put("id", "echo 1000")

    done = packages.run()

    assert done.returncode == 0
    assert done.stderr.startswith("warning: these packages are missing, and only root can install")
    assert not packages.log.exists()


@pytest.mark.parametrize("step", ["update", "install"])
def test_without_a_mirror_setup_goes_on(packages: Packages, step: str) -> None:
    packages.put("apt-get", f'case "$*" in *" {step}"*) exit 100; esac')

    done = packages.run()

    assert done.returncode == 0
    assert f"warning: apt-get {step} fails" in done.stderr
    assert "busybox-static" in done.stderr.splitlines()[-1]


def test_nothing_is_done_where_all_is_there(packages: Packages) -> None:
    packages.put("dpkg-query", 'for p in "$@"; do echo installed $p; done')

    done = packages.run()

    assert (done.returncode, done.stderr, packages.log.exists()) == (0, "", False)


def test_a_mirror_that_is_away_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    script(
        tmp_path / "bin/mmdebstrap",
        f'#!/bin/sh\necho x >> {tmp_path}/calls\necho "E: away" >&2\nexit 1\n',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    for _ in range(2):
        with pytest.raises(
            ContainerNotPossibleError, match=r"trixie cannot be installed: E: away"
        ):
            mmdebstrap.make("trixie", tmp_path / ".trixie", [], mirror="http://x", timeout_s=9)

    assert (tmp_path / "calls").read_text() == "x\n"
