# SPDX-License-Identifier: Apache-2.0
"""What `nvct doctor --fix` runs: commands of nvct's own that remove the reason of a finding.

Each of them changes only what nvct makes, atomically, and nothing if there is nothing to do.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from nvct.doctor.reasons import Reason
from nvct.launcher import cold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.doctor.model import Part

PUBLISH = ("publish",)
COMMANDS = {
    Reason.SpecificationStale: PUBLISH,
    Reason.SpecificationIncomplete: PUBLISH,
    Reason.HookMissing: PUBLISH,
    Reason.HookWithoutEnvironment: PUBLISH,
    Reason.DeviceNodesMissing: ("system", "create-device-nodes", "--all"),
    Reason.CharacterLinksMissing: ("system", "create-dev-char-symlinks"),
    Reason.PlanStale: ("refresh",),
}
"""The words after `nvct`, by reason; nodes come first, because specifications name them."""
ORDER = tuple(dict.fromkeys((COMMANDS[Reason.DeviceNodesMissing], *COMMANDS.values())))


@dataclass(frozen=True, slots=True)
class Mend:
    """A command, and the reasons that it removes."""

    words: tuple[str, ...]
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        """Return the command as a user types it."""
        return " ".join(("nvct", *self.words))


def plan(parts: Sequence[Part]) -> list[Mend]:
    """Return the commands for the faults of some parts, in the order to run them."""
    found = [finding.reason for part in parts for finding in part.findings if finding.is_fault]
    reasons = dict.fromkeys(reason for reason in found if reason in COMMANDS)
    return [
        Mend(words, tuple(reason for reason in reasons if COMMANDS[reason] == words))
        for words in ORDER
        if any(COMMANDS[reason] == words for reason in reasons)
    ]


def carry_out(mend: Mend, options: Sequence[str] = ()) -> int:
    """Run a command in a process of its own; return its exit status.

    Args:
        mend: the command.
        options: of the program, before the command's words.
    """
    argv = [cold.interpreter(), "-I", "-m", "nvct.cli", "nvct", *options, *mend.words]
    return subprocess.run(argv, check=False).returncode
