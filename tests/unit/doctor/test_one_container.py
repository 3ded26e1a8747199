# SPDX-License-Identifier: Apache-2.0
"""A container found by what a user knows of it, with what was decided about it."""

from pathlib import Path

import pytest

from nvct.config.model import Config
from nvct.container import recorder
from nvct.container.plan.store import Store
from nvct.doctor import decisions, one_container
from nvct.doctor.gpu_users import Device, Use
from nvct.doctor.node import Node
from nvct.errors import RequestError, UsageError
from nvct.paths import RUN_DIR_ENV
from tests.support.host_tree import HostTree

ID, OTHER = "ab" * 32, "cd" * 32
POD = f"var/log/containers/train-0_team_main-{OTHER}.log"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    made = HostTree(tmp_path)
    made.write(f"var/lib/docker/containers/{ID}/config.v2.json", '{"Name": "/trainer"}')
    made.write(POD)
    for pid, id_ in ((40, ID), (41, ID), (50, OTHER)):
        made.write(f"proc/{pid}/cgroup", f"0::/system.slice/docker-{id_}.scope\n")
    made.write("proc/60/cgroup", "0::/\n")
    made.write("proc/60/comm", "bash\n")
    return made


def found(tree: HostTree, word: str) -> list[tuple[str, int]]:
    return [(one.name, one.pid) for one in one_container.find(node(tree), word)]


def node(tree: HostTree, folder: str = "/nowhere") -> Node:
    """Return a host, and the decisions in a folder."""
    host = Node(settings=Config(), env={RUN_DIR_ENV: folder}, host=str(tree.base))
    host.roots, host.decisions = tree.roots, decisions.look([folder], decisions.Filter())
    return host


@pytest.mark.parametrize(
    ("words", "name", "pid"),
    [
        (("trainer", ID, ID[:12], "40"), "trainer", 40),
        (("train-0", "main", "team/train-0/main"), "team/train-0/main", 50),
        (("41",), "trainer", 41),
        (("60",), "process 60", 60),
    ],
)
def test_a_container_is_found_by_what_it_is_called(
    words: tuple[str, ...], name: str, pid: int, tree: HostTree
) -> None:
    for word in words:
        assert found(tree, word) == [(name, pid)]


def test_the_names_of_all_are_known(tree: HostTree) -> None:
    """Of those that do not run, too; a shell completes them."""
    tree.write(f"var/lib/docker/containers/{'ef' * 32}/config.v2.json", '{"Name": "/ended"}')
    names = one_container.names(node(tree))
    assert names == {ID: "trainer", "ef" * 32: "ended", OTHER: "team/train-0/main"}


def test_a_container_that_was_refused_is_found_by_its_id_and_name(
    tree: HostTree, tmp_path: Path
) -> None:
    refused, folder = "ef" * 32, tmp_path / "run"
    tree.write(f"var/lib/docker/containers/{refused}/config.v2.json", '{"Name": "/late"}')
    store = Store(str(folder), create=True)
    recorder.refused(store, "shim", f"/run/docker/{refused}", RequestError("no GPU 9"))
    recorder.refused(store, "shim", f"/run/docker/{refused}", RequestError("again"))
    podman = f"/var/lib/containers/storage/overlay-containers/{OTHER}/userdata"
    recorder.refused(store, "shim", podman, RequestError("other"))
    store.close()

    for word in ("late", refused, refused[:12]):
        host = node(tree, str(folder))
        (ended,) = one_container.find(host, word)
        one = one_container.told(ended, [], host)
        assert (one["id"], one["pid"]) == (refused, 0)
        assert [record["error"] for record in one["decisions"]] == ["no GPU 9", "again"]
    for word in ("docker", refused[:11], "run", "nobody", "overlay-containers"):
        with pytest.raises(UsageError):
            one_container.find(node(tree, str(folder)), word)


def test_a_name_means_a_container_that_does_not_run_too(tree: HostTree) -> None:
    refused = "ef" * 32
    tree.write(f"var/lib/docker/containers/{refused}/config.v2.json", '{"Name": "/late"}')

    meant = [one_container.ids(node(tree), word) for word in
             ("late", "trainer", "41", "60", "nobody")]  # fmt: skip

    assert meant == [(refused,), (ID,), (ID,), (), ()]


@pytest.mark.parametrize("word", ["nobody", "ab", "99"])
def test_what_is_nowhere_is_said(word: str, tree: HostTree) -> None:
    with pytest.raises(UsageError, match=f"'{word}' is neither a file nor the name or id"):
        found(tree, word)


def test_its_decisions_and_its_gpus(tree: HostTree, tmp_path: Path) -> None:
    folder = tmp_path / "nvct"
    store = Store(str(folder), create=True)
    recorder.refused(store, "shim", f"/run/docker/{ID}", RequestError("no GPU 9"))
    recorder.refused(store, "shim", f"/run/docker/{OTHER}", RequestError("other"))
    store.close()
    (container,) = one_container.find(node(tree), "trainer")
    uses = [
        Use(device=Device(3, ""), pid=41, labels={"container": "trainer"}),
        Use(device=Device(4, ""), pid=50, labels={"container": "main"}),
    ]

    told = one_container.told(container, uses, node(tree, str(folder)))

    assert [one["error"] for one in told["decisions"]] == ["no GPU 9"]
    assert [one["gpu"] for one in told["uses"]] == [3]


def test_a_process_of_the_host_has_only_what_it_has_open_itself(tree: HostTree) -> None:
    (process,) = one_container.find(node(tree), "60")
    uses = [Use(device=Device(0, ""), pid=61), Use(device=Device(1, ""), pid=60)]

    told = one_container.told(process, uses, node(tree))
    assert [one["gpu"] for one in told["uses"]] == [1]
