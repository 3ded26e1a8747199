# SPDX-License-Identifier: Apache-2.0
"""Errors and refusals as findings: the reason for each code of `nvct.errors`; and back."""

from __future__ import annotations

import re

from nvct.doctor.messages import Message
from nvct.doctor.model import Finding
from nvct.doctor.reasons import Reason
from nvct.errors import DriverNotFoundError, HostError
from nvct.host.nvml import session as sessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.errors import NvctError

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
CODE = re.compile(r"\[([a-z-]+)\]\s*$")
"""The end of an error of nvct, docs/errors.md."""


def of_error(error: NvctError, otherwise: Reason) -> Finding:
    """Return the finding of an error; `otherwise` is the reason of what no code stands for."""
    is_hang = error.code == "nvml" and sessions.is_hang(error.message)
    return Finding(
        reason=Reason.NvmlHung if is_hang else REASONS.get(error.code, otherwise),
        severity="error",
        evidence=error.message,
        remedy=error.hint,
    )


def message_of(text: str) -> Message | None:
    """Return what explains an error of nvct's own by the code at its end, None if it has none."""
    match = CODE.search(text)
    reason = REASONS.get(match[1]) if match else None
    if match is None or reason is None:
        return None
    # The error's own words say what is wrong.
    cause = text[: match.start()].strip().removeprefix("nvct: ")
    return Message(match[1], "nvct", "", cause, reason=reason)


def of_no_request(notes: Sequence[str]) -> Finding:
    """Return why a container asks for no GPU; `notes` are about what is ignored."""
    if notes:
        return Finding(reason=Reason.RequestIgnored, severity="warning", evidence="; ".join(notes))
    asks = "nothing in its environment, annotations and mounts asks for a GPU"
    return Finding(reason=Reason.GpuNotRequested, severity="note", evidence=asks)


def to_error(finding: Finding) -> HostError:
    """Return a finding about the host as the error with which a command ends."""
    error = DriverNotFoundError if finding.reason is Reason.DriverNotFound else HostError
    return error(finding.evidence, hint=finding.context or finding.remedy)
