# SPDX-License-Identifier: Apache-2.0
"""Whether a hook runs on the host, or in the container with the image's environment."""

import os
from pathlib import Path

import pytest

from nvct.container.prestart import main

ALL = "0 0 4294967295"


@pytest.mark.parametrize(
    ("own_namespace", "container_namespace", "host", "inside"),
    [
        ("a", "a", "b", True),
        ("a", "b", "a", False),
        ("a", "b", "c", False),
        ("a", "a", "a", False),
    ],
)
def test_a_hook_is_inside_if_it_has_the_containers_mounts_and_they_are_not_the_hosts(
    tmp_path: Path, own_namespace: str, container_namespace: str, host: str, *, inside: bool
) -> None:
    proc = make_proc(tmp_path, {os.getpid(): own_namespace, 7: container_namespace, 1: host})

    assert main.is_inside(7, proc) == inside
    assert not main.is_inside(8, proc)


def make_proc(folder: Path, mounts: dict[int, str], self: int | None = None) -> str:
    for process, name in mounts.items():
        (folder / str(process) / "ns").mkdir(parents=True)
        (folder / name).touch()
        (folder / str(process) / "ns/mnt").symlink_to(folder / name)
    (folder / "self").symlink_to(str(self or os.getpid()))
    return str(folder)


@pytest.mark.parametrize(
    ("container_namespace", "users", "inside"),
    [("a", "0 100000 65536", True), ("b", "0 100000 65536", False), ("a", ALL, False)],
)
def test_a_hook_in_a_user_namespace_is_inside_if_it_has_the_containers_mounts(
    tmp_path: Path, container_namespace: str, users: str, *, inside: bool
) -> None:
    """There stat(2) of /proc/1/ns/mnt says EACCES."""
    proc = make_proc(tmp_path, {os.getpid(): "a", 7: container_namespace})
    (tmp_path / "self/uid_map").write_text(f"{users}\n")

    assert main.is_inside(7, proc) == inside


def test_if_proc_is_of_another_pid_namespace_a_hook_counts_as_inside(tmp_path: Path) -> None:
    """A createContainer hook of a pod that shares its PID namespace: 7 is another's process."""
    proc = make_proc(tmp_path, {4711: "a", 7: "b", 1: "b"}, self=4711)

    assert main.is_inside(7, proc)
    assert main.is_inside(8, proc)
