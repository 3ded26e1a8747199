# SPDX-License-Identifier: Apache-2.0
"""Roots of a host."""

from pathlib import Path

import pytest

from nvct.errors import UsageError
from nvct.host.roots import Roots, below, join


def test_dev_root_is_the_driver_root_if_that_has_nvidiactl(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    assert Roots(driver_root=str(tmp_path)).dev == f"{tmp_path}/dev"


def test_dev_root_is_the_host_if_the_driver_root_has_no_nodes(tmp_path: Path) -> None:
    assert Roots(driver_root=str(tmp_path)).dev == "/dev"


def test_dev_root_that_is_named_wins(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()

    assert Roots(driver_root=str(tmp_path), dev_root="/other/").dev == "/other/dev"


def test_relative_root_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="driver root 'run/nvidia' is not absolute"):
        Roots(driver_root="run/nvidia")


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("/", "/usr/lib/x", "/usr/lib/x"),
        ("/run/nvidia/driver", "/run/nvidia/driver/usr/lib/x", "/usr/lib/x"),
        ("/run/nvidia/driver", "/run/nvidia/driver2/usr/lib/x", "/run/nvidia/driver2/usr/lib/x"),
        ("/run/nvidia/driver", "/run/nvidia/driver", "/"),
        ("/a", "/a/../a/b", "/b"),
    ],
)
def test_container_path_is_cut_at_component_boundaries(
    root: str, path: str, expected: str
) -> None:
    assert Roots(driver_root=root).container_path(path) == expected
    assert below(root, path) == expected


def test_host_path_is_the_inverse_of_container_path() -> None:
    roots = Roots(driver_root="/run/nvidia/driver/")

    assert roots.host_path("/usr/bin/x") == "/run/nvidia/driver/usr/bin/x"
    assert roots.container_path(roots.host_path("/usr/bin/x")) == "/usr/bin/x"


def test_join_keeps_a_single_leading_slash() -> None:
    assert join("/", "/usr/lib") == "/usr/lib"
    assert Roots(driver_root="//srv//driver").driver_root == "/srv/driver"
