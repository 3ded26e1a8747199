# SPDX-License-Identifier: Apache-2.0
"""NVIDIA_REQUIRE_*: what an image expects of driver and GPU, and whether it holds.

Hot; loaded where an image has some. nvidia-container-toolkit v1.20 checks nothing in its modes
jit-cdi and cdi, nvct does in all. An expression is a list of terms separated by spaces, of which
one has to hold; a term is a list of factors separated by commas, which all have to; a factor is
`property op value`. Semantics are libnvidia-container's: factors are read from left to right and
no further than needed, and a property about which nothing is known holds.
"""

from __future__ import annotations

from nvct.container.request.visible_devices import BLANK, shown
from nvct.errors import RequestError, RequirementError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX = "NVIDIA_REQUIRE_"
JETPACK = "NVIDIA_REQUIRE_JETPACK"
"""Means something else, on Tegra, and is never an expression."""
PROPERTIES = ("arch", "brand", "cuda", "driver")
OF_GPUS = ("arch", "brand")
UNKNOWN = "\0"
"""Stands for a property that no factor is to count as met."""
OPERATORS = ("<=", ">=", "!=", "=", "<", ">")
"""Longer ones first."""
TRUE = ("1", "t", "T", "TRUE", "true", "True")
DIGITS = "0123456789"
LENGTH_LIMIT = 16 * 1024
"""Characters of a container's expressions: a factor costs 2 us for each GPU. CUDA has 3 KiB."""
NUMBER_LIMIT = 18
HINT = "write PROPERTY OP VALUE without spaces, as in cuda>=12.4"


def gather(
    variables: Mapping[str, str], *, legacy_image: bool, disabled: bool = False
) -> list[tuple[str, str]]:
    """Return the (variable, expression) pairs that have to hold, sorted by variable.

    Args:
        variables: of the container.
        legacy_image: CUDA_VERSION stands for an expression of its own.
        disabled: the configuration switches requirements off.

    Raises:
        RequestError: they are longer than LENGTH_LIMIT together.
    """
    if disabled or variables.get("NVIDIA_DISABLE_REQUIRE") in TRUE:
        return []
    pairs = [
        (name, value)
        for name, value in sorted(variables.items())
        if name.startswith(PREFIX) and not name.startswith(JETPACK)
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
    """Return MAJOR.MINOR of a CUDA version, "" for what others write there: cu118, 118.

    It is not NVIDIA's alone to set. (The incumbent refuses it in legacy mode, and its default
    mode does not look at it.)
    """
    try:
        version = major_minor(text)
    except RequestError:
        return ""
    return version if len(version.partition(".")[0]) < 3 else ""


def major_minor(version: str) -> str:
    """Return MAJOR.MINOR of a version such as 10.1, v10.1.243, 11 or 12.0-rc1.

    Raises:
        RequestError: it is no version.
    """
    core = version.removeprefix("v").partition("+")[0].partition("-")[0]
    parts = core.split(".")
    if len(parts) > 3 or not all(_is_number(part) for part in parts):
        raise RequestError(
            f"CUDA_VERSION is {shown(version)}, which is no version", hint="write MAJOR.MINOR"
        )
    return f"{parts[0]}.{parts[1] if len(parts) > 1 else 0}"


def check(requirements: Sequence[tuple[str, str]], facts: Mapping[str, str]) -> None:
    """Refuse requirements that do not hold for one GPU, or for the node where none is selected.

    Args:
        requirements: (variable, expression) pairs.
        facts: values of cuda, driver, arch and brand; a missing or empty one is not known.

    Raises:
        RequirementError: one does not hold.
        RequestError: one is malformed.
    """
    for name, expression in requirements:
        if not holds(expression, facts, name):
            raise RequirementError(
                f"this node does not meet {name}={shown(expression)}",
                hint=_advice(expression, facts),
            )


def undecided(requirements: Sequence[tuple[str, str]], facts: Mapping[str, str]) -> bool:
    """Tell whether requirements that hold depend on what is not known of the GPUs."""
    assumed = {name: facts.get(name, "") or UNKNOWN for name in OF_GPUS}
    return any(
        not holds(expression, {**facts, **assumed}, name)
        for name, expression in requirements
        if "brand" in expression or "arch" in expression
    )


def _advice(expression: str, facts: Mapping[str, str]) -> str:
    cuda = facts.get("cuda", "")
    if cuda and expression.startswith("cuda>="):
        return f"the driver has CUDA {cuda}: renew it, or set NVIDIA_DISABLE_REQUIRE=1"
    return "NVIDIA_DISABLE_REQUIRE=1 switches the check off"


def holds(expression: str, facts: Mapping[str, str], source: str = "the requirement") -> bool:
    """Tell whether an expression holds; an empty one does.

    Raises:
        RequestError: a factor that had to be read is malformed.
    """
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
    """Return property, operator and value of a factor.

    Raises:
        RequestError: it is malformed.
    """
    for name in PROPERTIES:
        rest = factor[len(name) :] if factor.startswith(name) else ""
        for operator in OPERATORS:
            if not rest.startswith(operator):
                continue
            value = rest[len(operator) :]
            if _is_value(name, operator, value):
                return name, operator, value
            break
    raise RequestError(f"{source} has the malformed condition {shown(factor)}", hint=HINT)


def _is_value(name: str, operator: str, value: str) -> bool:
    if name == "brand":
        return bool(value) and operator in {"=", "!="} and not set(value) & set("<>=!" + BLANK)
    return is_version(value)


def is_version(text: str) -> bool:
    """Tell whether a text is made of numbers and dots."""
    return all(_is_number(part) for part in text.split("."))


def _is_number(text: str) -> bool:
    return 0 < len(text) <= NUMBER_LIMIT and not text.strip(DIGITS)


def compare(left: str, right: str) -> int:
    """Compare versions number by number; missing ones count as zero. Return -1, 0 or 1.

    The left one is the host's word: what is no number in it ends it.
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
