# SPDX-License-Identifier: Apache-2.0
"""Explains messages: those of programs that lack a GPU, and nvct's own errors, as findings.

The former are in messages.toml, and in the table of XIDs. A text may be one message or a pasted
log, with colors, prefixes, quotes that a program or JSON escaped, and lines that a terminal
wrapped. Contract: pure; a hostile text costs little time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from nvct.config import toml
from nvct.doctor.model import Finding, Part
from nvct.doctor.reasons import Reason
from nvct.errors import DriverNotFoundError, HostError, NvctError
from nvct.host import faults
from nvct.host.nvml import session as sessions

LIMIT = 256 << 10  # Only the last characters of a text are read
COLORS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)")
QUOTED = re.compile(r"\\{1,16}([\"'`])|[“”]")
BREAKS = re.compile(r"\\{1,16}r?\\{0,16}n|#012|\r\n?")
"""Line breaks as JSON and Go's %q write them, and as rsyslog does."""
UNICODE = re.compile(r"\\{1,16}u00(3c|3e|26)")  # What Go's encoding/json escapes: <, > and &
XID = re.compile(r"X(?:id|ID)(?: ?\([^)]{0,40}\))?(?:: ?|=| )(\d{1,4})\b")
"""An XID as the kernel module (Xid (PCI:0000:18:00): 79) or a device plugin (Xid=79) writes it."""
STEPS = {
    "ignore": "Nothing has to be done.",
    "application": "Look at the program that the line names; the GPU itself works.",
    "reset": "Drain the GPU, then run `nvidia-smi --gpu-reset -i GPU`.",
    "reboot": "Drain the node and reboot it; if the error comes again, have the GPU inspected.",
    "replace": "Drain the GPU and have it replaced.",
}


class Message(NamedTuple):
    """A message that nvct can explain."""

    name: str
    source: str
    pattern: str
    cause: str
    step: str = ""  # what to do next; "" for the remedy of the reason
    reason: Reason | None = None
    is_general: bool = False  # it has many causes

    @property
    def remedy(self) -> str:
        """What to do next."""
        return self.step or (self.reason.remedy if self.reason else "")


class Found(NamedTuple):
    """A message that occurs in a text."""

    message: Message
    line: int  # the first line of the text that has it, from 1
    times: int

    def to_dict(self) -> dict[str, object]:
        """Return the message for JSON."""
        message = self.message
        return {
            "message": message.name,
            "source": message.source,
            "cause": message.cause,
            "remedy": message.remedy,
            "reason": message.reason.name if message.reason else "",
            "line": self.line,
            "times": self.times,
        }


@lru_cache(maxsize=1)
def catalogue() -> tuple[Message, ...]:
    """Return the entries of messages.toml, in the file's order."""
    text = resources.files("nvct.doctor").joinpath("messages.toml").read_text(encoding="utf-8")
    return tuple(
        Message(
            reason=Reason[entry.pop("reason")] if "reason" in entry else None,
            is_general=entry.pop("general", False),
            **entry,
        )
        for entry in toml.loads(text)["message"]
    )


def explained(text: str) -> list[Found]:
    """Return the known messages in a text, each once, in the text's order.

    If several entries match a line, the first one counts. General entries count only if no other
    one matches the text.
    """
    before = text[:-LIMIT].count("\n")
    lines = plain(text[-LIMIT:]).split("\n")
    taken: set[int] = set()
    found: dict[str, Found] = {}
    for message, first, last in _matches(lines):
        spanned = set(range(first, last + 1))
        if not taken.isdisjoint(spanned):
            continue
        taken |= spanned
        known = found.get(message.name, Found(message, before + first + 1, 0))
        line = min(known.line, before + first + 1)
        found[message.name] = Found(message, line, known.times + 1)
    specific = [one for one in found.values() if not one.message.is_general]
    return sorted(specific or found.values(), key=lambda one: one.line)


def plain(text: str) -> str:
    """Return a text without colors and escapes, as the failed program wrote it."""
    text = BREAKS.sub("\n", COLORS.sub("", text))
    text = QUOTED.sub(lambda match: match[1] or '"', text)
    return UNICODE.sub(lambda match: chr(int(match[1], 16)), text)


def _matches(lines: list[str]) -> Iterator[tuple[Message, int, int]]:
    """Yield each matching entry with its first and last line, the best entries first."""
    # Programs break lines between words and indent the next one; terminals break them anywhere.
    flats = [
        _flat([" ".join(line.split()) for line in lines], " "),
        _flat([re.sub(r"\s+", " ", line) for line in lines], ""),
    ]

    def spans(pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], int, int]]:
        for flat, starts in flats:
            for match in pattern.finditer(flat):
                first = bisect_right(starts, match.start()) - 1
                yield match, first, bisect_right(starts, match.end() - 1) - 1

    for match, first, last in spans(XID):
        yield _of_xid(int(match[1])), first, last
    for message in catalogue():
        for _, first, last in spans(re.compile(message.pattern)):
            yield message, first, last


def _flat(lines: list[str], joint: str) -> tuple[str, list[int]]:
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line) + len(joint)
    return joint.join(lines), starts


_xids = lru_cache(maxsize=1)(faults.read)


def _of_xid(xid: int) -> Message:
    row = _xids().get(xid)
    action = row.action if row else faults.UNKNOWN
    about = row.name if row else "it is not in the table of known XIDs"
    reason = None if action in ("ignore", "application") else Reason.DeviceUnhealthy
    return Message(
        f"xid-{xid}", "NVIDIA's driver", "", f"XID {xid}: {about}.", STEPS[action], reason
    )


# Errors of nvct.

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
"""The reasons of error codes. An error with another code has its cause in its message."""
CODE = re.compile(r"\[([a-z-]{2,40})\]")
"""The code in an error of nvct (docs/errors.md); engines add words before and after the error."""
PROGRAM = re.compile(
    r"\b(nvidia-container-runtime(?:\.cdi|\.legacy|-hook)?|nvidia-cdi-hook|nvct): (?=\S)"
)
"""The start of an error of nvct, by which it is known even if an engine cut its code off."""
AFTER = re.compile(r"(?: \[[a-z-]{2,40}\])?(?:: unknown|[\"'`)}.,\s])*\Z")
"""A code without a reason, and what engines and logs write after an error."""
LONGEST = 1000  # Characters of an error
LOADS = "modprobe nvidia"  # In hints of errors about a driver that is not loaded
ADVICE = "Do what the message says after its semicolon; docs/errors.md has more."
"""The remedy for a code without a reason."""
OTHERS = {
    "error": "None of the other codes fits.",
    "bug": "Something happened that nobody expected: please report it.",
}


def of_error(error: NvctError, otherwise: Reason) -> Finding:
    """Return the finding of an error; `otherwise` is the reason if the error's code has none."""
    is_hang = error.code == "nvml" and sessions.is_hang(error.message)
    reason = Reason.NvmlHung if is_hang else REASONS.get(error.code, otherwise)
    return Finding(reason, "error", error.message, error.hint)


def refused(error: NvctError) -> Part:
    """Return the part that could not be checked because of an error."""
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    return Part.of(text, findings=[of_error(error, Reason.DriverNotFound)])


def message_of(text: str) -> Message | None:
    """Return the explanation of an error of nvct, as an engine prints it; None for other texts.

    The code gives the reason; without a code, the program's name shows that the error is nvct's.
    The text can be a code alone, with or without brackets.
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
    # The words of the error itself are its cause.
    cause = before[programs[-1].end() :] if programs else before
    if code is None:
        return Message("nvct", "nvct", "", AFTER.sub("", cause[:LONGEST]), ADVICE)
    return Message(code[1], "nvct", "", cause[-LONGEST:].strip(), reason=REASONS[code[1]])


def codes() -> dict[str, str]:
    """Return a description of each error code."""
    known = {error.code: (error.__doc__ or "").partition("\n")[0] for error in _classes(NvctError)}
    return {**known, **OTHERS}


def _classes(base: type[NvctError]) -> Iterator[type[NvctError]]:
    for error in base.__subclasses__():
        yield error
        yield from _classes(error)


def waiting(text: str, released: Callable[[], str]) -> str:
    """Return a text; while the driver is being replaced, it says so instead of "modprobe nvidia".

    `released` returns why the driver is being replaced, "" if it is not.
    """
    why = released() if LOADS in text else ""
    if not why:
        return text
    return f"wait: {why}" if text.startswith(LOADS) else text.replace(LOADS, why)


def of_no_request(notes: Sequence[str]) -> Finding:
    """Return the finding of a container without a request; `notes` are about ignored ones."""
    if notes:
        return Finding(Reason.RequestIgnored, "warning", "; ".join(notes))
    asks = "nothing in its environment, annotations and mounts asks for a GPU"
    return Finding(Reason.GpuNotRequested, "note", asks)


def to_error(finding: Finding) -> HostError:
    """Return a finding about the host as an error for a command to end with."""
    error = DriverNotFoundError if finding.reason is Reason.DriverNotFound else HostError
    return error(finding.evidence, hint=finding.context or finding.remedy)
