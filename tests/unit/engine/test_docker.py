# SPDX-License-Identifier: Apache-2.0
"""Docker's daemon.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nvct.engine import docker
from nvct.engine.model import EngineOptions, Handler
from nvct.errors import EngineConfigError, UsageError
from tests.unit.engine.tree import Tree, removal

SHIM = "/usr/bin/nvidia-container-runtime"
NVIDIA = Handler(name="nvidia", path=SHIM)
OPTIONS = EngineOptions(engine="docker", handlers=(NVIDIA,))


def configured(tree: Tree, options: EngineOptions) -> dict[str, object]:
    """Carry the plan out and return the document, after a second plan that must be empty."""
    tree.apply(docker.plan(options, tree))
    assert docker.plan(options, tree).edits == ()
    document = json.loads(tree.text(docker.CONFIG))
    assert isinstance(document, dict)
    return document


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("text", "before", "entry"),
    [
        (None, None, {"path": SHIM, "args": []}),
        ("", None, {"path": SHIM, "args": []}),
        ('{"runtimes": {"nvidia": {"path": "/old", "runtimeArgs": ["-x"]}}}', "/old",
         {"path": SHIM, "runtimeArgs": ["-x"]}),
        # Docker refuses a runtime with a type and a path.
        ('{"runtimes": {"nvidia": {"runtimeType": "io.containerd.x.v1"}}}', "",
         {"path": SHIM, "args": []}),
    ],
    ids=["no file", "empty", "another path, whose arguments stay", "containerd's shim"],
)  # fmt: skip
def test_the_runtime_is_registered(
    tree: Tree, text: str | None, before: str | None, entry: dict[str, object]
) -> None:
    if text is not None:
        tree.write(docker.CONFIG, text)
    assert docker.state(OPTIONS, tree).handlers.get("nvidia") == before
    assert configured(tree, OPTIONS) == {"runtimes": {"nvidia": entry}}
    assert docker.state(OPTIONS, tree).handlers == {"nvidia": SHIM}


def test_a_registered_runtime_is_left_alone(tree: Tree) -> None:
    entry = f'{{"runtimes": {{"nvidia": {{"Path": "{SHIM}", "runtimeArgs": ["--debug"]}}}}}}'
    tree.write(docker.CONFIG, entry)
    assert docker.plan(OPTIONS, tree).edits == ()
    assert docker.state(OPTIONS, tree).handlers == {"nvidia": SHIM}


def test_the_default_is_set_only_on_request(tree: Tree) -> None:
    tree.write(docker.CONFIG, '{"default-runtime": "crun", "runtimes": {"crun": {"path": "c"}}}')
    assert configured(tree, OPTIONS)["default-runtime"] == "crun"
    assert configured(tree, replace(OPTIONS, default="nvidia"))["default-runtime"] == "nvidia"
    assert docker.state(OPTIONS, tree).default == "nvidia"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"default": "other"}, "no runtime other is registered"),
        ({"drop_in": "/etc/docker/conf.d/x.json"}, "reads no drop-in file"),
        *(({"handlers": (Handler(name=name, path=SHIM),)}, f"keeps the runtime name {name}")
          for name in ("runc", "io.containerd.runc.v2")),
    ],
    ids=["default", "drop-in", "runc", "runc by type"],
)  # fmt: skip
def test_what_docker_does_not_take_is_refused(
    tree: Tree, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        docker.plan(replace(OPTIONS, **changes), tree)
    assert docker.plan(replace(OPTIONS, drop_in=""), tree).edits


@pytest.mark.parametrize(
    ("version", "setting", "written"),
    [
        ((), "", True),
        ((20, 10, 24), "", True),
        ((26, 1, 5), "", True),
        ((28, 1, 1), "", True),
        ((28, 2, 0), "", False),
        ((29, 1), "", False),
        ((29, 1), '"features": {"cdi": false}', True),
        ((26, 1, 5), '"features": {"cdi": true}', False),
    ],
)
def test_cdi_is_switched_on_if_it_is_off(
    tree: Tree, version: tuple[int, ...], setting: str, *, written: bool
) -> None:
    tree.write(docker.CONFIG, f"{{{setting}}}")
    change = docker.plan(EngineOptions(engine="docker", handlers=(), cdi=True, engine_version=version),
                         tree)  # fmt: skip
    assert bool(change.edits) == change.restart == written
    if written:
        tree.apply(change)
        assert docker.state(OPTIONS, tree).cdi is True
    assert bool(change.notes) == (version == (20, 10, 24))


def test_requirements_of_gpus_by_cdi_are_reported(tree: Tree) -> None:
    options = replace(OPTIONS, cdi=True, engine_version=(29, 2))
    assert "nvidia-cdi-hook is on dockerd's PATH" in docker.plan(options, tree).notes[0]
    for other in (replace(options, cdi=False), replace(options, engine_version=(29, 1, 5))):
        assert docker.plan(other, tree).notes == ()


def test_runtimes_need_no_restart(tree: Tree) -> None:
    assert not docker.plan(replace(OPTIONS, default="nvidia"), tree).restart


@pytest.mark.parametrize(
    ("folders_in_file", "folders", "written"),
    [
        ("", ("/etc/cdi", "/var/run/cdi"), False),
        ("", ("/etc/cdi", "/run/cdi"), False),
        ("", ("/run/cdi", "/etc/cdi"), True),
        ('"cdi-spec-dirs": ["/x"]', ("/x",), False),
        ('"cdi-spec-dirs": ["/x"]', ("/etc/cdi", "/var/run/cdi"), True),
        ('"cdi-spec-dirs": ["/x"]', (), False),
    ],
)
def test_spec_folders_are_written_if_docker_reads_others(
    tree: Tree, folders_in_file: str, folders: tuple[str, ...], *, written: bool
) -> None:
    tree.write(docker.CONFIG, f"{{{folders_in_file}}}")
    change = docker.plan(EngineOptions(engine="docker", handlers=(), spec_dirs=folders), tree)
    assert bool(change.edits) == change.restart == written
    tree.apply(change)
    if written:
        assert docker.state(OPTIONS, tree).spec_dirs == folders


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("--default-runtime=runc", replace(OPTIONS, default="nvidia")),
        ("--default-runtime", replace(OPTIONS, default="nvidia")),
        ("--feature=time-namespaces", replace(OPTIONS, cdi=True)),
        ("--cdi-spec-dir=/x", replace(OPTIONS, spec_dirs=("/x",))),
    ],
)
def test_options_of_dockerds_command_line_are_not_repeated(
    tree: Tree, argument: str, options: EngineOptions
) -> None:
    arguments = ("/usr/bin/dockerd", "-H", "fd://", argument)
    with pytest.raises(EngineConfigError, match=f"dockerd runs with {argument}"):
        docker.plan(replace(options, arguments=arguments), tree)
    assert docker.plan(replace(OPTIONS, arguments=(*arguments, "--add-runtime=a=/b")), tree).edits


@pytest.mark.parametrize(
    "text",
    [
        '{"runtimes": []}',
        '{"runtimes": {"nvidia": "x"}}',
        '{"runtimes": {"nvidia": {"path": 1}}}',
        '{"default-runtime": 1}',
        '{"features": {"cdi": "yes"}}',
        '{"cdi-spec-dirs": "x"}',
        '{"cdi-spec-dirs": [1]}',
    ],
)
def test_wrong_types_are_refused_with_line_and_column(tree: Tree, text: str) -> None:
    tree.write(docker.CONFIG, text)
    options = replace(OPTIONS, default="nvidia", cdi=True, spec_dirs=("/x",))
    for function in (docker.state, docker.plan):
        with pytest.raises(EngineConfigError, match="line 1, column"):
            function(options, tree)
    assert tree.text(docker.CONFIG) == text


def test_removal_keeps_foreign_default_and_folders(tree: Tree) -> None:
    options = replace(OPTIONS, cdi=True, spec_dirs=("/x",))
    assert removal(options, tree).edits == ()  # without a file
    text = '{"default-runtime": "crun", "cdi-spec-dirs": ["/y"], "features": {"cdi": false}}'
    tree.write(docker.CONFIG, text)
    assert removal(options, tree).edits == ()


def test_docker_has_to_be_restarted_where_its_default_goes(tree: Tree) -> None:
    options = replace(OPTIONS, default="nvidia")
    tree.write(docker.CONFIG, '{"runtimes": {"crun": {"path": "crun"}}}')
    configured(tree, options)
    assert removal(options, tree).restart
    tree.write(
        docker.CONFIG,
        '{"default-runtime": "crun", "runtimes": {"nvidia": {"path": "/x/nvidia-container-runtime"}}}',
    )
    change = removal(options, tree)
    assert change.edits
    assert not change.restart
