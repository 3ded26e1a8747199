# SPDX-License-Identifier: Apache-2.0
"""The Makefile names files that exist, and each of its targets is run by something; what workers share."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.conftest import TOGETHER, unit_of

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
    "deb": ("packaging/deb/build.sh", "tests/support/debian_root.py"),
    "rpm": ("packaging/rpm/build.sh", "tests/integration/test_packages.py"),
    "bundle": ("packaging/bundle/build.py", "tests/support/bundled.py"),
    "image": ("build.py", "tests/support/program_image.py"),
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
    assert sorted(reached("ci-full") | {"help", "clean"} | RUN_BY.keys()) == PHONY
    recipes = "".join(RULES[name][1] for name in reached("ci-full"))
    for name, (command, path) in RUN_BY.items():
        assert command in RULES[name][1], name
        assert command in ((ROOT / path).read_text() if path else recipes), name


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
        assert 'scope="package"' in (ROOT / folder / "conftest.py").read_text(encoding="utf-8")
