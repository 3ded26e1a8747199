# SPDX-License-Identifier: Apache-2.0
"""The archive of the hot side: the same modules, never stale ones, never a stranger's."""

import ast
import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import nvct
from nvct.errors import HostError, UsageError
from nvct.launcher import archive, install
from nvct.launcher.install import Built
from tests.support.processes import captured

HERE = Path(nvct.__path__[0]).parent
SHOW = """
def origins():
    return {n: [getattr(m.__spec__.loader, "modules", None) is not None, hasattr(m, "__file__")]
            for n, m in sys.modules.items() if n.split(".")[0] == "nvct"}
"""


def archived(packages: Path) -> Built:
    ignored = shutil.ignore_patterns("__pycache__", "sim")
    shutil.copytree(HERE / "nvct", packages / "nvct", ignore=ignored)
    built_paths = replace(install.default_built(), packages=str(packages))
    return replace(built_paths, archive=install.make_archive(built_paths))


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return archived(tmp_path / "pack ages")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a copy for tests that change no file of it."""
    return archived(tmp_path_factory.mktemp("shared") / "pack ages")


def run(built: Built, code: str) -> str:
    text = f"{built.boot()}import sys\n{SHOW}{code}"
    completed = captured([built.python, "-I", "-S", "-c", text])
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def imported(built: Built, *modules: str) -> dict[str, list[bool]]:
    """Return for each module of nvct whether it is from the archive and whether it has a file."""
    code = f"import {', '.join(modules)}, json; print(json.dumps(origins()))"
    document: dict[str, list[bool]] = json.loads(run(built, code))
    return document


def test_a_head_of_any_length_is_read(built: Built) -> None:
    module = Path(built.packages, "nvct/container/cdi_hook/with_a_long_head.py")
    names = "".join(
        f"import nvct.container.cdi_hook.of_a_long_name_{'x' * 60}_{n}\n" for n in range(300)
    )
    for n in range(300):
        Path(module.parent, f"of_a_long_name_{'x' * 60}_{n}.py").write_text(f"X = {n}\n")
    module.write_text(names)

    install.make_archive(built)

    modules = imported(built, "nvct.container.cdi_hook.with_a_long_head")
    assert len(modules) > 300
    assert [name for name, (archived, _) in modules.items() if not archived] == []


def test_every_hot_module_is_in_it_and_comes_from_it(shared: Built) -> None:
    sources, _ = archive.discover(Path(shared.packages))
    names = set(sources)
    recorded = {
        line
        for path in (HERE / "tests" / "startup").glob("*.txt")
        if not path.name.startswith("cli-")  # the command line's
        for line in path.read_text(encoding="utf-8").split()
    }
    assert recorded <= names
    assert not {name for name in names if name.split(".")[1:2] in (["host"], ["sim"], ["cli"])}

    modules = imported(shared, *sorted(names))

    assert {name for name, (from_archive, _) in modules.items() if from_archive} == names
    assert not any(has_file for _, has_file in modules.values())


@pytest.mark.parametrize(
    "module",
    [
        "nvct.container.shim.main",
        "nvct.version",
    ],
)
def test_it_loads_the_same_modules_as_the_usual_import(shared: Built, module: str) -> None:
    usual = imported(replace(shared, archive=""), module)
    modules = imported(shared, module)
    assert set(modules) == set(usual)
    assert {tuple(how) for how in usual.values()} == {(False, True)}
    assert {tuple(how) for how in modules.values()} == {(True, False)}


def test_a_source_that_changed_is_never_run_from_it(built: Built) -> None:
    source = Path(built.packages, "nvct/container/plan/fingerprints.py")
    text, before = source.read_text(encoding="utf-8"), source.stat().st_mtime_ns
    for change, at, value in (("\nYOUNG_NS = 7\n", before, 7), ("", before + 1, 2_000_000_000)):
        source.write_text(text + change, encoding="utf-8")
        os.utime(source, ns=(at, at))

        modules = imported(built, "nvct.container.plan.store", "nvct.container.plan.fingerprints")

        assert modules["nvct.container.plan.fingerprints"] == [False, True]
        assert modules["nvct.container.plan.store"] == [True, False]
        code = "from nvct.container.plan import fingerprints as f; print(f.YOUNG_NS)"
        assert run(built, code) == f"{value}\n"


def test_a_removed_source_is_missing_and_a_new_one_is_found(built: Built) -> None:
    package = Path(built.packages, "nvct/container/plan")
    (package / "fingerprints.py").unlink()
    (package / "new.py").write_text("ANSWER = 42\n", encoding="utf-8")
    code = "from nvct.container.plan import new; print(new.ANSWER)\ntry: import nvct.container.plan.fingerprints\nexcept ImportError: print('gone')"
    assert run(built, code) == "42\ngone\n"


def _foreign(path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root to give a file away")
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    "spoil",
    [
        _foreign,
        lambda path: path.chmod(0o664),
        lambda path: path.chmod(0o646),
        lambda path: path.write_bytes(b"\0\0\0\0" + path.read_bytes()[4:]),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["foreign", "group", "others", "magic", "cut", "empty", "gone", "folder"],
)  # fmt: skip
def test_an_archive_that_cannot_be_trusted_is_not_used(
    shared: Built, tmp_path: Path, spoil: object
) -> None:
    own = replace(shared, archive=str(shutil.copy(shared.archive, tmp_path)))
    assert imported(own, "nvct.paths")["nvct.paths"] == [True, False]
    assert callable(spoil)
    spoil(Path(own.archive))
    assert imported(own, "nvct.paths")["nvct.paths"] == [False, True]


def test_code_without_effect_is_removed_and_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        '"""Doc."""\nfrom __future__ import annotations\nTYPE_CHECKING = False\n'
        "if TYPE_CHECKING:\n    from typing import Any\n\n\n"
        'class A:\n    """Doc."""\n    x: int\n    y: list[Any] = [1]\n\n'
        '    def f(self, a: Any, *b: Any, c: Any = 1, **d: Any) -> Any:\n        """Doc."""\n'
        '        z: Any = "kept"\n        assert a, z\n        return lambda: __doc__\n',
        encoding="utf-8",
    )
    source = archive._Source("m", path)
    text = ast.unparse(source.tree)
    for removed in ("Doc.", "Any", "annotations", "int"):
        assert removed not in text
    assert "assert a" in text
    space: dict[str, type] = {}
    exec(source.code(), space)  # noqa: S102  the code under test
    assert space["A"].y == [1]  # type: ignore[attr-defined]  # made above
    with pytest.raises(AssertionError) as caught:
        space["A"]().f(0)
    assert caught.traceback[-1].lineno == 15  # counted from 0: the assertion's own line


def test_extension_modules_are_found_at_once_and_only_where_they_are(shared: Built) -> None:
    code = "import _json; print([t for t in sys.path_importer_cache if 'dynload' in t], _json.make_scanner)"
    if "_json" in sys.builtin_module_names:
        pytest.skip("_json is built in")
    assert run(shared, code).startswith("[] <class")


def test_an_archive_can_be_elsewhere_and_then_it_must_be_writable(tmp_path: Path) -> None:
    built_paths = replace(install.default_built(), archive=str(tmp_path / "var" / "hot.bin"))
    assert install.make_archive(built_paths) == built_paths.archive
    assert imported(built_paths, "nvct.paths")["nvct.paths"] == [True, False]
    with pytest.raises(HostError, match="could not archive"):
        install.install(tmp_path, "sh", replace(built_paths, archive="/proc/no/hot.bin"))
    with pytest.raises(UsageError, match="cannot be built"):
        install.install(tmp_path, "sh", replace(built_paths, archive=str(tmp_path / "it's.bin")))


@pytest.mark.parametrize(
    ("form", "program"), [("c", "nvidia-cdi-hook"), ("sh", "nvidia-container-runtime")]
)
def test_installed_launchers_use_it(built: Built, tmp_path: Path, form: str, program: str) -> None:
    if form == "c" and shutil.which("cc") is None:
        pytest.skip("needs cc")
    used, written = install.install(tmp_path, form, built)
    assert (used, written[-1]) == (form, Path(built.archive))
    # A module that only the archive can bring: its source says something else, unchanged in size and time.
    source = Path(built.packages, "nvct", "version.py")
    before = source.stat()
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("def text", "def t3xt"), encoding="utf-8")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))

    completed = captured(
        [tmp_path / program, "--version"],
        env={**os.environ, "NVCT_RUN_DIR": str(tmp_path / "run")},
    )

    assert re.match(program.replace("-", "[- ]"), completed.stdout, re.IGNORECASE), (
        completed.stderr
    )
