# SPDX-License-Identifier: Apache-2.0
"""Errors and refusals as findings: the reason for each code of `nvct.errors`; and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from nvct.doctor.messages import Message, plain
from nvct.doctor.model import Finding, Part
from nvct.doctor.reasons import Reason
from nvct.errors import DriverNotFoundError, HostError, NvctError
from nvct.host.nvml import session as sessions

REASONS = {
    "bad-request": Reason.RequestMalformed,
    "unknown-device": Reason.DeviceUnknown,
    "not-permitted": Reason.RequestNotPermitted,
    "requirement-not-met": Reason.RequirementNotMet,
    "driver-not-found": Reason.DriverNotFound,
    "nvml": Reason.DriverNotWorking,
    "stale-spec": Reason.SpecificationStale,
    "bad-cdi-spec": Reason.SpecificationUnreadable,
    "cdi-conflict": Reason.SpecificationConflict,
    "bad-config": Reason.ConfigurationInvalid,
}
"""Code -> reason. The other codes are of errors of many causes, which their messages tell."""
CODE = re.compile(r"\[([a-z-]{2,40})\]")
"""In an error of nvct, docs/errors.md; engines add words before and after it."""
PROGRAM = re.compile(
    r"\b(nvidia-container-runtime(?:\.cdi|\.legacy|-hook)?|nvidia-cdi-hook|nvct): (?=\S)"
)
"""Before an error of nvct, also one that an engine has cut before its code."""
AFTER = re.compile(r"(?: \[[a-z-]{2,40}\])?(?:: unknown|[\"'`)}.,\s])*\Z")
"""What engines and logs write after an error, and a code that tells no reason."""
LONGEST = 1000
"""Characters of an error."""
LOADS = "modprobe nvidia"
"""In the advice of what finds no loaded driver."""
ADVICE = "Do what the message says after its semicolon; docs/errors.md has more."
"""For a code whose reason is not known."""
OTHERS = {
    "error": "None of the other codes fits.",
    "bug": "Something happened that nobody expected: please report it.",
}


def of_error(error: NvctError, otherwise: Reason) -> Finding:
    """Return the finding of an error; `otherwise` is the reason of what no code stands for."""
    is_hang = error.code == "nvml" and sessions.is_hang(error.message)
    reason = Reason.NvmlHung if is_hang else REASONS.get(error.code, otherwise)
    return Finding(reason, "error", error.message, error.hint)


def refused(error: NvctError) -> Part:
    """Return the part that could not be checked because of an error."""
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    return Part.of(text, findings=[of_error(error, Reason.DriverNotFound)])


def message_of(text: str) -> Message | None:
    """Return what explains an error of nvct's own, as an engine prints it; None if it is none.

    The code tells the reason; without it, the name of the program tells that it is nvct's. A text
    may be a code alone, with or without brackets.
    """
    line = " ".join(plain(text).split())
    alone = line.removeprefix("[").removesuffix("]")
    about = codes().get(alone)
    if about:
        reason = REASONS.get(alone)
        return Message(alone, "nvct", "", about, "" if reason else ADVICE, reason)
    code = next((one for one in CODE.finditer(line) if one[1] in REASONS), None)
    before = line[: code.start()] if code else line
    programs = list(PROGRAM.finditer(before))
    if code is None and not programs:
        return None
    # The error's own words say what is wrong.
    cause = before[programs[-1].end() :] if programs else before
    if code is None:
        return Message("nvct", "nvct", "", AFTER.sub("", cause[:LONGEST]), ADVICE)
    return Message(code[1], "nvct", "", cause[-LONGEST:].strip(), reason=REASONS[code[1]])


def codes() -> dict[str, str]:
    """Return what each code of an error is about."""
    known = {error.code: (error.__doc__ or "").partition("\n")[0] for error in _classes(NvctError)}
    return {**known, **OTHERS}


def _classes(base: type[NvctError]) -> Iterator[type[NvctError]]:
    for error in base.__subclasses__():
        yield error
        yield from _classes(error)


def waiting(text: str, released: Callable[[], str]) -> str:
    """Return a text; where it says to load the driver, and that is being replaced, it says so.

    Args:
        released: returns why the driver is being replaced, "" if it is not.
    """
    why = released() if LOADS in text else ""
    if not why:
        return text
    return f"wait: {why}" if text.startswith(LOADS) else text.replace(LOADS, why)


def of_no_request(notes: Sequence[str]) -> Finding:
    """Return why a container asks for no GPU; `notes` are about what is ignored."""
    if notes:
        return Finding(Reason.RequestIgnored, "warning", "; ".join(notes))
    asks = "nothing in its environment, annotations and mounts asks for a GPU"
    return Finding(Reason.GpuNotRequested, "note", asks)


def to_error(finding: Finding) -> HostError:
    """Return a finding about the host as the error with which a command ends."""
    error = DriverNotFoundError if finding.reason is Reason.DriverNotFound else HostError
    return error(finding.evidence, hint=finding.context or finding.remedy)
