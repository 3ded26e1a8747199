# SPDX-License-Identifier: Apache-2.0
"""Whether a container may have what it asks for: the rules [nvct.policy] of config.toml.

Hot; loaded only where there are rules. A rule is a list of conditions, which all have to hold, and
an outcome; the first rule that holds decides, and where none does the request is allowed.
Contract: a policy never widens a request. A condition about which nothing can be learned counts
against the container: a rule that allows doesn't hold then, one that refuses does. Who asks is
read from what the engine wrote and from the kernel, never from the container's own words.
"""

from __future__ import annotations

from nvct.container.request.conditions import CONDITIONS
from nvct.container.request.origin import Step
from nvct.container.request.visible_devices import shown
from nvct.errors import (
    DocumentError,
    NotPermittedError,
    NvctError,
    UnknownDeviceError,
)
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.request.case import Case

ALLOW, IGNORE, DENY = "allow", "ignore", "deny"
AGAIN = "touch config.toml, and it is compiled again"
NOT_CONDITIONS = ("name", "then", "reason")


def admits(case: Case, notes: list[str]) -> bool:
    """Tell whether a container gets what it asks for; False means that it starts without.

    Notes say what was decided, and why.

    Raises:
        NotPermittedError: the policy denies it.
        RequestError: the policy denies it, and it is no device of this node: who has misspelt a
            name has to mend that, not the policy.
        DocumentError: a compiled rule is damaged.
    """
    steps = walk(case)
    if case.origin is not None:
        case.origin.steps = steps
    last = steps[-1]
    if not last.holds:
        notes.append("no rule of the policy holds: allowed")
        return True
    what = f"policy rule {shown(last.rule)}"
    if last.then == ALLOW:
        notes.append(f"{what} allows it: {last.why}")
        return True
    ids = ",".join(case.request.ids) or "none" if case.request else "what is no device"
    asks = f"{case.source} asks for {shown(ids)}"
    reason = _reason(case.config.policy[len(steps) - 1])
    told = f"{last.why}; {reason}" if reason else last.why
    if last.then == IGNORE:
        notes.append(f"{asks}, which is ignored by {what}: {told}")
        return False
    if case.kubernetes and {"image-env", None} & set(case.by):
        # It may come from the image of a pod that wants no GPU: that one has to start.
        notes.append(
            f"{asks}, which is ignored and not denied by {what}, because an image of a pod"
            f" without a GPU may bring it: {told}"
        )
        return False
    _refuse_misspelt(case)
    raise NotPermittedError(
        f"{what} denies {case.source}={shown(ids)}", hint=reason or "nvct explain shows why"
    )


def _refuse_misspelt(case: Case) -> None:
    """Refuse a request that is denied as what it is in the first place, if it is misspelt.

    Raises:
        RequestError: it cannot be understood, or names a device that is not there.
    """
    if case.request is None:
        if case.trouble is not None:
            raise case.trouble
        return
    look_up = case.origin.look_up if case.origin is not None else None
    extras = case.request.extras
    if look_up is None or extras.mig_config or extras.mig_monitor:  # GPUs of another plan
        return
    try:
        look_up(case.request)
    except UnknownDeviceError:
        raise
    except NvctError:  # no plan
        return


def walk(case: Case) -> list[Step]:
    """Return the rules that were looked at, in order; only the last one can hold.

    Raises:
        DocumentError: a compiled rule is damaged.
    """
    steps: list[Step] = []
    for text in case.config.policy:
        rule = _parse(text)
        name, then = str(rule["name"]), str(rule["then"])
        held: list[str] = []
        case.refuses = then != ALLOW
        for key, condition in CONDITIONS.items():
            if key not in rule:
                continue
            holds, seen = condition(rule[key], case)
            if holds is None:
                holds, seen = then != ALLOW, f"{seen}, which counts against it"
            if not holds:
                steps.append(Step(name, then, f"{key}: {seen}", holds=False))
                break
            held.append(f"{key}: {seen}")
        else:
            steps.append(Step(name, then, "; ".join(held) or "it has no conditions", holds=True))
            break
    return steps


def _parse(text: str) -> dict[str, jsontext.Json]:
    rule = jsontext.parse(text, "a compiled rule of the policy")
    if not isinstance(rule, dict) or rule.get("then") not in (ALLOW, IGNORE, DENY):
        raise DocumentError("a compiled rule of the policy is damaged", hint=AGAIN)
    if set(rule) - set(CONDITIONS) - set(NOT_CONDITIONS) or "name" not in rule:
        raise DocumentError("a compiled rule of the policy has an unknown member", hint=AGAIN)
    return rule


def _reason(text: str) -> str:
    return str(_parse(text).get("reason", ""))
