# SPDX-License-Identifier: Apache-2.0
"""Podman's containers.conf."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.config import toml_file
from nvct.engine import podman
from nvct.engine.model import EngineOptions, Handler
from nvct.errors import EngineConfigError, UsageError
from tests.unit.engine.tree import Tree, removal

CORPUS = Path(__file__).parents[2] / "engineconf" / "podman"
SHIM = "/usr/bin/nvidia-container-runtime"
HOOKS = "/etc/containers/oci/hooks.d"
DROP_IN = "/etc/containers/containers.conf.d/99-nvidia.conf"
HANDLERS = (
    Handler(name="nvidia", path=SHIM),
    Handler(name="nvidia-cdi", path=f"{SHIM}.cdi"),
)
OPTIONS = EngineOptions(engine="podman", handlers=HANDLERS)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def configured(tree: Tree, options: EngineOptions) -> None:
    """Carry the plan out; a second one must be empty."""
    tree.apply(podman.plan(options, tree))
    assert podman.plan(options, tree).edits == ()


def test_the_drop_in_has_only_our_runtimes(tree: Tree) -> None:
    main = '[engine]\nruntime = "crun"\n[engine.runtimes]\ncrun = ["/usr/bin/crun"]\n'
    tree.write(podman.CONFIG, main)
    configured(tree, OPTIONS)
    assert tree.text(podman.CONFIG) == main
    assert toml_file.parse(tree.text(DROP_IN), DROP_IN) == {
        "engine": {"runtimes": {"nvidia": [SHIM], "nvidia-cdi": [f"{SHIM}.cdi"]}}
    }
    state = podman.state(OPTIONS, tree)
    assert state.files == (podman.CONFIG, DROP_IN)
    assert state.handlers == {"crun": "/usr/bin/crun", "nvidia": SHIM, "nvidia-cdi": f"{SHIM}.cdi"}
    assert state.default == "crun"


def test_settings_of_other_files_are_not_repeated(tree: Tree) -> None:
    tree.write(podman.VENDOR_CONFIG, f'[engine]\nruntime = "nvidia"\nhooks_dir = ["{HOOKS}"]\n')
    runtimes = f'nvidia = ["{SHIM}"]\nnvidia-cdi = ["{SHIM}.cdi", "/x"]\n'
    tree.write("/etc/containers/containers.conf.d/10-a.conf", f"[engine.runtimes]\n{runtimes}")
    assert podman.plan(replace(OPTIONS, default="nvidia", hooks_dir=HOOKS), tree).edits == ()


def test_a_later_file_with_another_value_is_reported(tree: Tree) -> None:
    later = "/etc/containers/containers.conf.d/99-x.conf"
    tree.write(later, '[engine]\nruntime = "runc"\n[engine.runtimes]\nnvidia = ["/old"]\n')
    change = podman.plan(replace(OPTIONS, default="nvidia"), tree)
    assert sorted(change.notes) == [
        f"{later} is read later and says nvidia too: it wins",
        f"{later} is read later and says runtime too: it wins",
    ]
    tree.apply(change)
    assert podman.plan(replace(OPTIONS, default="nvidia"), tree).edits == ()


def test_in_place_the_later_file_that_has_our_handler_is_edited(tree: Tree) -> None:
    later = "/etc/containers/containers.conf.d/nvidia.conf"
    text = '[engine.runtimes]\nnvidia = [\n  "/old", # x\n]\n'
    tree.write(later, text)
    options = replace(OPTIONS, in_place=True)

    change = podman.plan(options, tree)

    assert [edit.path for edit in change.edits] == [later]
    assert change.notes == ()
    tree.apply(change)
    assert podman.state(options, tree).handlers == {"nvidia": SHIM, "nvidia-cdi": f"{SHIM}.cdi"}
    assert podman.plan(options, tree).edits == ()


def test_in_place_our_drop_in_is_written_if_it_is_read_last(tree: Tree) -> None:
    tree.write(
        "/etc/containers/containers.conf.d/10-a.conf", '[engine.runtimes]\nnvidia = ["/a"]\n'
    )
    (edit,) = podman.plan(replace(OPTIONS, in_place=True), tree).edits
    assert edit.path == DROP_IN


@pytest.mark.parametrize(
    ("main", "named"),
    [
        ("", ["/usr/share/containers/oci/hooks.d", HOOKS]),
        ('[engine]\nhooks_dir = ["/opt/hooks"]\n', ["/opt/hooks", HOOKS]),
        # From here on arrays add up, the drop-in's too.
        ('[engine]\nhooks_dir = ["/opt/hooks", {append=true}]\n', [HOOKS]),
        ('[engine]\nhooks_dir = ["/opt/hooks", {append=false}]\n', ["/opt/hooks", HOOKS]),
    ],
    ids=["default", "replaced", "appended", "not appended"],
)
def test_existing_hook_folders_stay(tree: Tree, main: str, named: list[str]) -> None:
    tree.write(podman.CONFIG, main)
    options = replace(OPTIONS, handlers=(), hooks_dir=HOOKS)
    configured(tree, options)
    assert toml_file.parse(tree.text(DROP_IN), DROP_IN) == {"engine": {"hooks_dir": named}}


def test_hook_folders_of_the_edited_file_stay(tree: Tree) -> None:
    text = '[engine]\nhooks_dir = ["/opt/hooks", {append=true}]\n'
    tree.write(podman.CONFIG, text)
    options = replace(OPTIONS, handlers=(), hooks_dir=HOOKS, drop_in="")
    configured(tree, options)
    assert tree.text(podman.CONFIG) == text.replace("]", f', "{HOOKS}"]').replace(
        f'[engine, "{HOOKS}"]', "[engine]"
    )


def test_a_users_own_file_gets_its_own_drop_in(tree: Tree) -> None:
    config = "/home/me/.config/containers/containers.conf"
    tree.write(podman.CONFIG, f'[engine.runtimes]\nnvidia = ["{SHIM}"]\n')
    options = replace(OPTIONS, config=config)
    configured(tree, options)
    drop_in = toml_file.parse(tree.text(f"{config}.d/99-nvidia.conf"), config)
    assert drop_in == {"engine": {"runtimes": {"nvidia-cdi": [f"{SHIM}.cdi"]}}}
    assert podman.state(options, tree).files == (podman.CONFIG, f"{config}.d/99-nvidia.conf")


def test_spec_folders_are_written_if_podman_supports_them(tree: Tree) -> None:
    options = replace(OPTIONS, handlers=(), spec_dirs=("/x",))
    with pytest.raises(UsageError, match=r"before 5\.5"):
        podman.plan(replace(options, engine_version=(5, 4, 2)), tree)
    usual = replace(options, spec_dirs=("/etc/cdi", "/var/run/cdi"))
    for version, missing in (((), False), ((5, 4, 2), False), ((5, 5, 1), True), ((5, 6), False)):
        change = podman.plan(replace(usual, engine_version=version), tree)
        assert bool(change.edits) == missing
    configured(tree, replace(options, engine_version=(5, 8, 6)))
    assert podman.state(options, tree).spec_dirs == ("/x",)


def test_a_podman_with_one_spec_folder_is_reported(tree: Tree) -> None:
    options = replace(OPTIONS, engine_version=(5, 5, 1))
    for change in (podman.plan(options, tree), podman.plan(replace(options, handlers=()), tree)):
        assert "looks for CDI specs in /etc/cdi alone" in change.notes[0]
    tree.write(podman.CONFIG, '[engine]\ncdi_spec_dirs = ["/x"]\n')
    assert podman.plan(options, tree).notes == ()
    assert podman.plan(replace(options, engine_version=(5, 6)), tree).notes == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"handlers": (Handler(name="nvidia", path="nvidia-container-runtime"),)},
         "by its name alone: nvidia-container-runtime"),
        *(({"drop_in": path}, f"does not read {path}")
          for path in ("/etc/x.conf", "/etc/containers/containers.conf.d/a.toml")),
    ],
    ids=["program without a folder", "drop-in elsewhere", "drop-in of another suffix"],
)  # fmt: skip
def test_what_podman_would_not_read_is_refused(
    tree: Tree, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        podman.plan(replace(OPTIONS, **changes), tree)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('engine = "x"\n', "engine is 'x', not a table"),
        ("[engine]\nruntimes = 1\n", r"engine\.runtimes is 1, not a table"),
        ('[engine.runtimes]\nnvidia = "x"\n', r"engine\.runtimes\.nvidia is no array of strings"),
        ("[engine]\nruntime = 1\n", r"engine\.runtime is no string"),
        ('[engine]\nhooks_dir = "x"\n', r"engine\.hooks_dir is no array of strings"),
        ("[engine]\nhooks_dir = [{x=1}]\n", r"engine\.hooks_dir is no array of strings"),
        ("[engine]\ncdi_spec_dirs = [1]\n", r"engine\.cdi_spec_dirs is no array of strings"),
        ("[engine\n", "no TOML: line 1"),
    ],
)
def test_malformed_files_are_refused_with_their_path(tree: Tree, text: str, reason: str) -> None:
    for path in (podman.CONFIG, DROP_IN):
        tree.write(path, text)
        for function in (podman.state, podman.plan):
            with pytest.raises(EngineConfigError, match=f"{path}.* {reason}"):
                function(OPTIONS, tree)
        assert tree.text(path) == text
        (tree.base / path.lstrip("/")).unlink()


def test_removal_keeps_foreign_settings_in_our_file(tree: Tree) -> None:
    assert removal(OPTIONS, tree).edits == ()  # without a file
    configured(tree, replace(OPTIONS, default="nvidia"))
    text = tree.text(DROP_IN) + 'kata = ["/usr/bin/kata"]\n'
    tree.write(DROP_IN, text)
    tree.apply(removal(replace(OPTIONS, default="nvidia"), tree))
    expected = {"engine": {"runtimes": {"kata": ["/usr/bin/kata"]}}}
    assert toml_file.parse(tree.text(DROP_IN), DROP_IN) == expected
    assert removal(OPTIONS, tree).edits == ()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.conf")), ids=lambda path: path.stem)
def test_every_kind_of_file_is_edited_in_place_on_request(tree: Tree, path: Path) -> None:
    tree.write(podman.CONFIG, path.read_bytes())
    before = podman.state(OPTIONS, tree).handlers
    options = replace(OPTIONS, default="nvidia", drop_in="")
    configured(tree, options)
    assert tree.read(DROP_IN) is None
    our_handlers = {handler.name: handler.path for handler in HANDLERS}
    assert podman.state(options, tree).handlers == {**before, **our_handlers}
    expected = [line for line in path.read_text().splitlines() if line.startswith(("#", "\t#"))]
    assert [line for line in tree.text(podman.CONFIG).splitlines() if line in expected] == expected
