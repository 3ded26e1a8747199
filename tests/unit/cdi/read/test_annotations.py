# SPDX-License-Identifier: Apache-2.0
"""Annotations that ask for devices, and those of specs."""

from __future__ import annotations

import pytest

from nvct.cdi.read import annotations as cdi_annotations
from nvct.errors import RequestError


def test_a_key_is_made_of_plugin_and_device() -> None:
    assert cdi_annotations.key("nvidia-device-plugin", "0") == "cdi.k8s.io/nvidia-device-plugin_0"
    assert cdi_annotations.key("vendor.com", "a/b/c") == "cdi.k8s.io/vendor.com_a_b_c"
    assert cdi_annotations.key("p", "d" * 61) == f"cdi.k8s.io/p_{'d' * 61}"


@pytest.mark.parametrize(
    ("plugin", "device"),
    [
        ("", "0"),
        ("plugin", ""),
        ("p", "d" * 62),
        ("-plugin", "0"),
        ("plugin", "0-"),
        ("plug in", "0"),
        ("plugin", "0\n"),
        ("plúgin", "0"),
    ],
)
def test_what_makes_no_key_is_refused(plugin: str, device: str) -> None:
    with pytest.raises(RequestError):
        cdi_annotations.key(plugin, device)


def test_a_written_request_is_read_back() -> None:
    container: dict[str, str] = {"unrelated": "x"}
    cdi_annotations.update(container, "b", "0", ["vendor.com/device=1", "vendor.com/device=2"])
    cdi_annotations.update(container, "a", "0", ["vendor.com/device=2"])

    assert cdi_annotations.parse(container) == (
        ["cdi.k8s.io/a_0", "cdi.k8s.io/b_0"],
        ["vendor.com/device=2", "vendor.com/device=1"],
    )


def test_a_key_is_not_taken_from_another_request() -> None:
    container = {"cdi.k8s.io/a_0": "vendor.com/device=1"}

    with pytest.raises(RequestError, match="exists already"):
        cdi_annotations.update(container, "a", "0", ["vendor.com/device=2"])

    assert container == {"cdi.k8s.io/a_0": "vendor.com/device=1"}


@pytest.mark.parametrize("value", ["", "0", "vendor.com/device=1,", "vendor.com/device=1, b/c=d"])
def test_an_unqualified_device_is_refused(value: str) -> None:
    with pytest.raises(RequestError, match=r"annotation cdi\.k8s\.io/a_0: "):
        cdi_annotations.parse({"cdi.k8s.io/a_0": value})
    with pytest.raises(RequestError):
        cdi_annotations.value([value])


def test_without_requests_there_are_no_devices() -> None:
    assert cdi_annotations.parse({"io.kubernetes.cri": "pod"}) == ([], [])


@pytest.mark.parametrize(
    "key", ["a", "vendor.com/a", "Vendor.com/A_b.c-d", "a" * 63, f"{'a.' * 126}a/b"]
)
def test_keys_that_kubernetes_takes(key: str) -> None:
    cdi_annotations.check({key: ""})


@pytest.mark.parametrize(
    "key", ["", "/a", "vendor.com/", "-a", "a-", "a b", "a" * 64, "a/b/c", "v_endor/a", "é", "a\n"]
)
def test_keys_that_kubernetes_refuses(key: str) -> None:
    with pytest.raises(RequestError, match="annotation key"):
        cdi_annotations.check({key: ""})


def test_annotations_are_limited_all_together() -> None:
    half = "x" * (128 << 10)

    cdi_annotations.check({"a": half, "b": half[2:]})
    with pytest.raises(RequestError, match="more than 262144"):
        cdi_annotations.check({"a": half, "b": half[1:]})
