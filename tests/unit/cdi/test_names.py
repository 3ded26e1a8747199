# SPDX-License-Identifier: Apache-2.0
"""Names of CDI devices."""

import pytest

from nvct.cdi import names
from nvct.errors import RequestError, line


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("nvidia.com/gpu=0", ("nvidia.com", "gpu", "0")),
        ("nvidia.com/gpu=0:1", ("nvidia.com", "gpu", "0:1")),
        ("nvidia.com/gpu=all", ("nvidia.com", "gpu", "all")),
        ("nvidia.com/gpu.coherent=a_b-c.d:e", ("nvidia.com", "gpu.coherent", "a_b-c.d:e")),
        ("ve/cl=d", ("ve", "cl", "d")),
        ("Vendor1/class_x=GPU-5ff1", ("Vendor1", "class_x", "GPU-5ff1")),
    ],
)
def test_a_qualified_name_has_three_parts(name: str, parts: tuple[str, str, str]) -> None:
    assert names.parse(name) == parts
    assert names.is_qualified(name)
    assert names.qualified(f"{parts[0]}/{parts[1]}", parts[2]) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "0", "all", "=", "/", "/=", "nvidia.com/gpu", "nvidia.com/gpu=", "nvidia.com=0",
        "/gpu=0", "nvidia.com/=0", "/dev/nvidia0", "/dev/a=b", "a=nvidia.com/gpu",
        "9vendor/class=0", "vendor-/class=0", "vendor/9class=0", "vendor/class.=0",
        "ven dor/class=0", "vendor/cl/ass=0", "vendor/class=a=b", "vendor/class=a/b",
        "vendor/class=-a", "vendor/class=a-", "vendor/class=:0", "vendor/class=0:",
        "vendor/class=a b", "vendor/class=a\n", "vendor/class=é", "véndor/class=a",
        "vendor/class=٣", "vendor/class=a\0b", " vendor/class=a",
    ],
)  # fmt: skip
def test_anything_else_is_refused(name: str) -> None:
    assert not names.is_qualified(name)
    with pytest.raises(RequestError):
        names.parse(name)


@pytest.mark.parametrize("name", ["v/class=0", "vendor/c=0"])
def test_a_vendor_or_class_of_one_letter_is_refused_because_engines_crash(name: str) -> None:
    with pytest.raises(RequestError, match="only one letter, which crashes Docker 28"):
        names.parse(name)


def test_a_kind_is_vendor_and_class() -> None:
    assert names.parse_kind("nvidia.com/gpu") == ("nvidia.com", "gpu")


@pytest.mark.parametrize("kind", ["", "nvidia.com", "nvidia.com/", "/gpu", "a/gpu", "nv/g!u"])
def test_what_is_no_kind_is_refused(kind: str) -> None:
    with pytest.raises(RequestError):
        names.parse_kind(kind)


@pytest.mark.parametrize(("vendor", "cls"), [("", "gpu"), ("nvidia.com", "")])
def test_an_empty_part_is_refused(vendor: str, cls: str) -> None:
    with pytest.raises(RequestError):
        names.check_kind(vendor, cls)
    with pytest.raises(RequestError):
        names.check_device_name("")


def test_the_error_says_what_to_write() -> None:
    with pytest.raises(RequestError) as caught:
        names.parse("nvidia.com/gpu=0!1")

    assert line("nvct", caught.value) == (
        "nvct: CDI device name '0!1' has the character '!'; "
        "letters, digits and _.-: are allowed [bad-request]"
    )


def test_a_huge_name_is_shown_short() -> None:
    with pytest.raises(RequestError) as caught:
        names.parse("x" * 100_000)

    assert len(caught.value.message) < 200
