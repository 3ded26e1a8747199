# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_*: requirements of an image for the driver and the GPU.

Hot; loaded only for images with requirements. nvidia-container-toolkit v1.20 checks them in mode
legacy only, nvct in all modes. An expression is a list of terms separated by spaces; one of them
must hold. A term is a list of factors separated by commas; all of them must hold. A factor is
`property op value`. The semantics are those of libnvidia-container: evaluation runs from left to
right and stops early, and a factor with an unknown property holds.
"""

from __future__ import annotations

from nvct.container.request.model import JETPACK
from nvct.container.request.visible_devices import BLANK, shown
from nvct.errors import RequestError, RequirementError
from nvct.paths import TRUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX = "NVIDIA_REQUIRE_"

PROPERTIES = ("arch", "brand", "cuda", "driver")
OF_GPUS = ("arch", "brand")
UNKNOWN = "\0"  # The value of a property with which no factor holds
OPERATORS = ("<=", ">=", "!=", "=", "<", ">")  # Longer ones first
DIGITS = "0123456789"
LENGTH_LIMIT = 16 * 1024
"""Characters in all expressions of a container. A factor costs 2 us per GPU; CUDA uses 3 KiB."""
NUMBER_LIMIT = 18
HINT = "write PROPERTY OP VALUE without spaces, as in cuda>=12.4"


def gather(
    variables: Mapping[str, str], *, legacy_image: bool, disabled: bool = False
) -> list[tuple[str, str]]:
    """Return the (variable, expression) pairs that must hold, sorted by variable.

    In a legacy image CUDA_VERSION implies a requirement. Raises RequestError if the expressions
    together are longer than LENGTH_LIMIT.
    """
    if disabled or variables.get("NVIDIA_DISABLE_REQUIRE") in TRUE:
        return []
    pairs = [
        (name, value)
        for name, value in sorted(variables.items())
        if name.startswith(PREFIX) and not name.startswith(JETPACK)  # not an expression
    ]
    if sum([len(value) for _, value in pairs]) > LENGTH_LIMIT:
        raise RequestError(
            f"the variables {PREFIX}* are longer than {LENGTH_LIMIT} characters",
            hint="NVIDIA_DISABLE_REQUIRE=1 switches the check off",
        )
    if legacy_image:
        version = _cuda(variables["CUDA_VERSION"])
        pairs[:0] = [("CUDA_VERSION", f"cuda>={version}")] if version else []
    return pairs


def _cuda(text: str) -> str:
    """Return MAJOR.MINOR of a CUDA version, "" for values of other vendors such as cu118 and 118.

    The incumbent refuses such values in legacy mode and ignores the variable in its default mode.
    """
    try:
        version = major_minor(text)
    except RequestError:
        return ""
    return version if len(version.partition(".")[0]) < 3 else ""


def major_minor(version: str) -> str:
    """Return MAJOR.MINOR of a version such as 10.1, v10.1.243, 11 or 12.0-rc1.

    Raises RequestError.
    """
    core = version.removeprefix("v").partition("+")[0].partition("-")[0]
    parts = core.split(".")
    if len(parts) > 3 or not all(_is_number(part) for part in parts):
        raise RequestError(
            f"CUDA_VERSION is {shown(version)}, which is not a version", hint="write MAJOR.MINOR"
        )
    return f"{parts[0]}.{parts[1] if len(parts) > 1 else 0}"


def check(requirements: Sequence[tuple[str, str]], facts: Mapping[str, str]) -> None:
    """Refuse requirements that do not hold for one GPU, or for the node if no GPU is selected.

    `facts` are values of cuda, driver, arch and brand; a missing or empty one is unknown. Raises
    RequirementError, or RequestError for a malformed requirement.
    """
    for name, expression in requirements:
        if not holds(expression, facts, name):
            raise RequirementError(
                f"this node does not meet {name}={shown(expression)}",
                hint=_advice(expression, facts),
            )


def undecided(requirements: Sequence[tuple[str, str]], facts: Mapping[str, str]) -> bool:
    """Report whether requirements that hold depend on unknown properties of the GPUs."""
    assumed = {name: facts.get(name, "") or UNKNOWN for name in OF_GPUS}
    return any(
        not holds(expression, {**facts, **assumed}, name)
        for name, expression in requirements
        if "brand" in expression or "arch" in expression
    )


def _advice(expression: str, facts: Mapping[str, str]) -> str:
    cuda = facts.get("cuda", "")
    if cuda and expression.startswith("cuda>="):
        return f"the driver has CUDA {cuda}: upgrade it, or set NVIDIA_DISABLE_REQUIRE=1"
    return "NVIDIA_DISABLE_REQUIRE=1 switches the check off"


def holds(expression: str, facts: Mapping[str, str], source: str = "the requirement") -> bool:
    """Report whether an expression holds; an empty one does. RequestError if it is malformed."""
    if len(expression) > LENGTH_LIMIT:
        raise RequestError(f"{source} is longer than {LENGTH_LIMIT} characters")
    terms = [term for term in expression.split(" ") if term.strip(",")]
    if not terms:
        return True
    return any(
        all(_factor_holds(factor, facts, source) for factor in term.split(",") if factor)
        for term in terms
    )


def _factor_holds(factor: str, facts: Mapping[str, str], source: str) -> bool:
    name, operator, value = parse_factor(factor, source)
    actual = facts.get(name, "")
    if not actual or actual == UNKNOWN:
        return not actual
    if name == "brand":
        return (actual.lower() == value.lower()) == (operator == "=")
    order = compare(actual, value)
    if operator == "=":
        return order == 0
    if operator == "!=":
        return order != 0
    if order == 0:
        return len(operator) == 2
    return (order < 0) == (operator[0] == "<")


def parse_factor(factor: str, source: str = "the requirement") -> tuple[str, str, str]:
    """Return property, operator and value of a factor; RequestError if it is malformed."""
    for name in PROPERTIES:
        condition = factor[len(name) :] if factor.startswith(name) else ""
        for operator in OPERATORS:
            if not condition.startswith(operator):
                continue
            value = condition[len(operator) :]
            if _is_value(name, operator, value):
                return name, operator, value
            break
    raise RequestError(f"{source} has the malformed condition {shown(factor)}", hint=HINT)


def _is_value(name: str, operator: str, value: str) -> bool:
    if name == "brand":
        return bool(value) and operator in {"=", "!="} and not set(value) & set("<>=!" + BLANK)
    return all(_is_number(part) for part in value.split("."))


def _is_number(text: str) -> bool:
    return 0 < len(text) <= NUMBER_LIMIT and not text.strip(DIGITS)


def compare(left: str, right: str) -> int:
    """Compare versions by their numbers; missing ones count as zero. Return -1, 0 or 1.

    The first part that is not a number ends a version. Only the left version, which comes from
    the host, can have one.
    """
    first, second = _numbers(left), _numbers(right)
    size = max(len(first), len(second))
    first += [0] * (size - len(first))
    second += [0] * (size - len(second))
    return (first > second) - (first < second)


def _numbers(version: str) -> list[int]:
    numbers: list[int] = []
    for part in version.split("."):
        if not _is_number(part):
            break
        numbers.append(int(part))
    return numbers
