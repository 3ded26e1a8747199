# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_DRIVER_CAPABILITIES."""

from __future__ import annotations

import pytest

from nvct.config.model import DRIVER_CAPABILITIES
from nvct.container.request.capabilities import mig_capability, parse, resolve
from nvct.errors import ConfigError, NotPermittedError, RequestError, line

ALL = list(DRIVER_CAPABILITIES)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", []),
        (" , ", []),
        ("all", ["all"]),
        ("all,compute", ["all"]),
        ("utility, compute,utility", ["compute", "utility"]),
        (",".join(reversed(ALL)), ALL),
    ],
)
def test_a_value_is_a_list_of_capabilities(value: str, names: list[str]) -> None:
    assert parse(value) == names


@pytest.mark.parametrize(
    "value", ["none", "void", "Compute", "compute;utility", "all,foo", "foo,all"]
)
def test_an_unknown_capability_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match=r"^NVIDIA_DRIVER_CAPABILITIES has .* unknown"):
        parse(value)


@pytest.mark.parametrize(
    ("value", "supported", "legacy_image", "names"),
    [
        (None, ALL, False, ["compute", "utility"]),
        ("", ALL, False, ["compute", "utility"]),
        (None, ["utility", "video"], False, ["utility"]),
        (None, ALL, True, ALL),
        (None, ["video"], True, ["video"]),
        ("", ALL, True, ["compute", "utility"]),
        ("all", ALL, False, ALL),
        ("all", ["video", "compute"], False, ["compute", "video"]),
        ("all", ["all"], False, ALL),
        ("video,compute", ALL, False, ["compute", "video"]),
    ],
    ids=str,
)
def test_a_container_gets_what_it_asks_for_within_the_bound(
    value: str | None, supported: list[str], *, legacy_image: bool, names: list[str]
) -> None:
    assert resolve(value, supported, legacy_image=legacy_image) == names


def test_a_capability_beyond_the_bound_is_not_permitted() -> None:
    with pytest.raises(NotPermittedError) as caught:
        resolve("compute,video", ["compute", "utility"], legacy_image=False)

    assert line("p", caught.value) == (
        "p: NVIDIA_DRIVER_CAPABILITIES has video, which this node does not allow;"
        " see supported-driver-capabilities in config.toml [not-permitted]"
    )


def test_an_unknown_supported_capability_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="supported-driver-capabilities has 'foo'"):
        resolve(None, ["compute", "foo"], legacy_image=False)


@pytest.mark.parametrize("variables", [{}, {"X": ""}])
def test_without_mig_variables_no_mig_capability_is_requested(variables: dict[str, str]) -> None:
    assert not mig_capability(variables, "X", privileged=False)


def test_a_mig_capability_is_all_or_nothing() -> None:
    assert mig_capability({"X": "all"}, "X", privileged=True)
    with pytest.raises(RequestError, match="X is '0'"):
        mig_capability({"X": "0"}, "X", privileged=True)
