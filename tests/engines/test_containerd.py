# SPDX-License-Identifier: Apache-2.0
"""containerd with the shim by BinaryName; in `make ci-full` of each release, in either layout."""

from __future__ import annotations

import pytest

from tests.engines import checks
from tests.engines.engines import Engine

pytestmark = pytest.mark.slow


def test_a_container_gets_what_it_asks_for(containerd: Engine, layout: str) -> None:
    checks.gives_what_is_asked_for(containerd, layout)


def test_exec_and_restart_find_the_driver(containerd: Engine, layout: str) -> None:
    checks.reaches_exec_and_outlives_a_restart(containerd, layout)


def test_a_read_only_container_finds_the_driver(containerd: Engine, layout: str) -> None:
    checks.serves_read_only_roots(containerd, layout)


def test_a_volume_on_usr_local_is_left_alone(containerd: Engine, layout: str) -> None:
    checks.leaves_a_volume_alone(containerd, layout)


def test_an_images_file_in_the_way_is_left_alone(containerd: Engine, layout: str) -> None:
    checks.leaves_an_images_file_alone(containerd, layout)


@pytest.mark.usefixtures("layout")
def test_no_injected_mount_can_be_written(containerd: Engine) -> None:
    checks.lets_nobody_write(containerd)


def test_an_upgrade_on_the_disk_is_survived(containerd: Engine, layout: str) -> None:
    checks.follows_an_upgrade(containerd, layout)
