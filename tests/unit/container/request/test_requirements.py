# SPDX-License-Identifier: Apache-2.0
import pytest

from nvct.container.request.requirements import (
    check,
    compare,
    gather,
    holds,
    major_minor,
    parse_factor,
    undecided,
)
from nvct.errors import RequestError, RequirementError, line

FACTS = {"cuda": "13.0", "driver": "580.159.04", "arch": "9.0", "brand": "Tesla"}
# What NVIDIA's own images carry.
CUDA_IMAGE = (
    "cuda>=13.1 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=535,driver<536"
    " brand=tesla,driver>=580,driver<581"
)


@pytest.mark.parametrize(
    "factor",
    [
        "", "cuda", "cuda>=", ">=12", "12", "cuda==12", "cuda=>12", "cuda>>12", "cuda!12", "cuda~12",
        "cuda>=12a", "cuda>=v12", "cuda>=12..1", "cuda>=.", "cuda>=-1", "cuda>=\u0661", "CUDA>=12", "xcuda>=12",
        "memory>=1", "brand>=tesla", "brand<tesla", "brand=", "brand==tesla", "cuda >=12", "cuda>=" + "9" * 19,
    ],
)  # fmt: skip
def test_a_malformed_factor_is_refused(factor: str) -> None:
    with pytest.raises(RequestError, match="malformed"):
        parse_factor(factor)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("", True),
        (",", True),
        ("cuda>=12.4", True),
        ("cuda>=13.1", False),
        ("cuda>13", False),
        ("cuda<13", False),
        ("cuda<=13", True),
        ("cuda<13.0.1", True),
        ("cuda=13", True),
        ("cuda!=13", False),
        ("driver>=580,driver<581", True),
        ("driver>580.159.4", False),
        ("brand=tesla", True),
        ("brand=TESLA", True),
        ("brand!=tesla", False),
        ("arch>=10.0", False),
        ("cuda>=14 arch>=9", True),
        ("cuda>=14  ,,arch>=9,,", True),
        (CUDA_IMAGE, True),
    ],
)
def test_spaces_mean_or_and_commas_mean_and(expression: str, *, result: bool) -> None:
    assert holds(expression, FACTS) is result


def test_a_factor_of_an_unknown_property_holds() -> None:
    assert holds("cuda>=99,driver>=999,arch>=99,brand=x", {})
    assert holds("cuda>=99", {**FACTS, "cuda": ""})


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("brand=tesla", True),
        ("arch>=7.0", True),
        ("brand!=tesla", True),
        ("cuda>=12 brand=tesla", False),
        ("cuda>=99 brand=tesla,driver>=580", True),
        ("cuda>=99 brand=tesla,driver>=600 driver>=500", False),
        ("", False),
    ],
)
def test_undecided_reports_whether_the_result_depends_on_the_gpus(
    expression: str, *, answer: bool
) -> None:
    properties = {"cuda": "13.0", "driver": "580.1"}

    assert undecided([("NVIDIA_REQUIRE_X", expression)], properties) == answer


def test_factors_after_the_deciding_one_are_not_read() -> None:
    assert holds("cuda>=12 nonsense", FACTS)
    assert not holds("cuda>=14,nonsense", FACTS)
    with pytest.raises(RequestError):
        holds("nonsense cuda>=12", FACTS)
    with pytest.raises(RequestError):
        holds("cuda>=14 nonsense", FACTS)


def test_a_huge_expression_is_refused() -> None:
    with pytest.raises(RequestError, match="longer than"):
        holds("cuda>=1," * 10000, FACTS, "NVIDIA_REQUIRE_X")


def test_many_long_expressions_are_refused_before_any_is_read() -> None:
    """A variable each is short enough; 2 MB of them took 4 s for each time and GPU."""
    variables = {f"NVIDIA_REQUIRE_{number}": "driver<1 " * 500 for number in range(50)}

    with pytest.raises(RequestError, match="longer than 16384 characters"):
        gather(variables, legacy_image=False)
    assert gather({**variables, "NVIDIA_DISABLE_REQUIRE": "1"}, legacy_image=False) == []


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("1", "1.0", 0),
        ("1.10", "1.9", 1),
        ("01", "1", 0),
        ("580.82.07-1", "580.82", 0),
        ("", "0", 0),
    ],
)
def test_versions_are_compared_number_by_number(left: str, right: str, order: int) -> None:
    assert compare(left, right) == order


@pytest.mark.parametrize(
    ("version", "result"),
    [
        ("10.1", "10.1"),
        ("11", "11.0"),
        ("10.1.243", "10.1"),
        ("12.0-rc1", "12.0"),
    ],
)
def test_a_legacy_image_states_its_version(version: str, result: str) -> None:
    assert major_minor(version) == result


@pytest.mark.parametrize(
    "version", ["", "v", "x", "10.", ".1", "10.x", "1.2.3.4", "10,1", "-1", "vv1"]
)
def test_a_malformed_version_is_refused(version: str) -> None:
    with pytest.raises(RequestError, match=r"^CUDA_VERSION is"):
        major_minor(version)


@pytest.mark.parametrize("legacy_image", [False, True])
def test_requirements_are_gathered_by_name_and_a_legacy_image_requires_its_cuda_version(
    *, legacy_image: bool
) -> None:
    variables = {
        "NVIDIA_REQUIRE_Z": "arch>=7",
        "NVIDIA_REQUIRE_CUDA": "cuda>=12",
        "NVIDIA_REQUIRE_JETPACK": "csv-mounts=all",
        "NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS": "x",
        "NVIDIA_REQUIRED": "cuda>=99",
        "CUDA_VERSION": "10.1.243",
    }
    named = [("NVIDIA_REQUIRE_CUDA", "cuda>=12"), ("NVIDIA_REQUIRE_Z", "arch>=7")]

    legacy = [("CUDA_VERSION", "cuda>=10.1")] if legacy_image else []
    assert gather(variables, legacy_image=legacy_image) == legacy + named


@pytest.mark.parametrize("version", ["cu118", "118", "latest", "", "12.x"])
def test_cuda_version_of_another_vendor_requires_nothing(version: str) -> None:
    assert gather({"CUDA_VERSION": version}, legacy_image=True) == []


@pytest.mark.parametrize(
    ("value", "count"),
    [("1", 0), ("true", 0), ("TRUE", 0), ("yes", 1), ("0", 1), ("", 1), ("tRue", 1)],
)
def test_a_container_and_the_configuration_can_switch_requirements_off(
    value: str, count: int
) -> None:
    variables = {"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": value}

    assert len(gather(variables, legacy_image=False)) == count
    variables["CUDA_VERSION"] = "nonsense"
    assert gather(variables, legacy_image=True, disabled=True) == []


def test_all_requirements_must_hold() -> None:
    check([("A", "cuda>=12"), ("B", "arch>=9")], FACTS)
    with pytest.raises(RequirementError, match="B="):
        check([("A", "cuda>=12"), ("B", "arch>=10")], FACTS)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (
            "cuda>=13.1",
            (
                "p: this node does not meet NVIDIA_REQUIRE_CUDA='cuda>=13.1'; the driver has CUDA 13.0:"
                " upgrade it, or set NVIDIA_DISABLE_REQUIRE=1 [requirement-not-met]"
            ),
        ),
        (
            "arch>=10",
            (
                "p: this node does not meet NVIDIA_REQUIRE_CUDA='arch>=10';"
                " NVIDIA_DISABLE_REQUIRE=1 switches the check off [requirement-not-met]"
            ),
        ),
    ],
)
def test_an_unmet_requirement_reads_as_one_line(expression: str, text: str) -> None:
    with pytest.raises(RequirementError) as caught:
        check([("NVIDIA_REQUIRE_CUDA", expression)], FACTS)

    assert line("p", caught.value) == text
