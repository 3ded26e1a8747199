# SPDX-License-Identifier: Apache-2.0
"""Decides whether a container may have what it requests: [nvct.policy] of config.toml.

Hot; loaded only if the policy has rules. A rule is a list of conditions and an outcome. It holds
if all its conditions hold; the first rule that holds decides. If none holds, the request is
allowed. Contract: a policy never widens a request. An unknown condition counts against the
container: a rule that allows does not hold then, one that refuses does. What the kubelet has given
a container stays, whatever else the container asks for. The origin of a request is
read from the engine's files and from the kernel, never from data that the container controls.
"""

from __future__ import annotations

from nvct.container.request.conditions import CONDITIONS
from nvct.container.request.model import BY_ENGINE
from nvct.container.request.origin import RuleResult
from nvct.container.request.visible_devices import shown
from nvct.errors import DocumentError, NotPermittedError, NvctError, UnknownDeviceError
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.request.case import Case

ALLOW, IGNORE, DENY = "allow", "ignore", "deny"
AGAIN = "touch config.toml to have it compiled again"
NOT_CONDITIONS = ("name", "then", "reason")


def admits(case: Case, notes: list[str]) -> bool:
    """Report whether a container gets what it requests; False means that it gets `case.given`.

    The decision and its reason are added to the notes.

    Raises:
        NotPermittedError: the policy denies the request; or it ignores the request, and what the
            kubelet gave is unknown.
        RequestError: the policy denies the request, which names an unknown device: the name is to
            be corrected, not the policy.
        DocumentError: a compiled rule is damaged.
    """
    results = evaluate(case)
    if case.origin is not None:
        case.origin.results = results
    last = results[-1]
    if not last.holds:
        notes.append("no rule of the policy holds: allowed")
        return True
    rule = f"policy rule {shown(last.rule)}"
    if last.then == ALLOW:
        notes.append(f"{rule} allows it: {last.why}")
        return True
    names = [*case.request.ids, *case.extras] or ["none"] if case.request else []
    ids = ",".join(names) or "an invalid device"
    if case.request is not None and case.request.free is not None:
        ids = case.request.free.word
    given_by = f", given by {case.way}" if case.way else ""
    asks = f"{case.source} asks for {shown(ids)}{given_by}"
    why = f"{last.why}; {last.reason}" if last.reason else last.why
    if last.then == IGNORE:
        notes.append(f"{asks}, which is ignored by {rule}: {why}")
        _check_given(case, notes)
        return False
    if case.kubernetes and {"image-env", None} & set(case.by):
        # The image of a pod without a GPU may set the variable; that pod has to start.
        notes.append(
            f"{asks}, which is ignored and not denied by {rule}, because an image of a pod"
            f" without a GPU may set it: {why}"
        )
        _check_given(case, notes)
        return False
    _refuse_misspelt(case)
    denied = f"{rule} denies {case.source}={shown(ids)}{given_by}"
    if case.given is not None:
        denied += f": the kubelet has given this container {shown(','.join(case.given.ids))}"
    raise NotPermittedError(denied, hint=last.reason or "nvct explain shows why")


def _check_given(case: Case, notes: list[str]) -> None:
    """Note what the kubelet gave, which stays; refuse an ignored request if that is unknown."""
    if case.given_error is not None:
        raise NotPermittedError(
            f"{case.source} cannot be ignored, because it may be what the kubelet has given:"
            f" {case.given_error.message}",
            hint=case.given_error.hint,
        )
    if case.given is not None:
        notes.append(f"the kubelet has given {shown(','.join(case.given.ids))}")


def _refuse_misspelt(case: Case) -> None:
    """Refuse a denied request because of its malformed or unknown names, if it has any."""
    if case.request is None:
        if case.error is not None:
            raise case.error
        return
    if case.request.source == BY_ENGINE:  # the engine has found its devices
        return
    extras = case.request.extras
    if case.plans is None or extras.mig_config or extras.mig_monitor:  # GPUs of another plan
        return
    try:
        case.plans.check_known(case.request)
    except UnknownDeviceError:
        raise
    except NvctError:  # no plan
        return


def evaluate(case: Case) -> list[RuleResult]:
    """Return the results of the rules in order; only the last one can hold.

    Raises:
        DocumentError: a compiled rule is damaged.
    """
    results: list[RuleResult] = []
    for text in case.config.policy:
        rule = _parse(text)
        result = RuleResult(str(rule["name"]), str(rule["then"]), str(rule.get("reason", "")))
        results.append(result)
        reasons: list[str] = []
        case.refuses = result.then != ALLOW
        for key, condition in CONDITIONS.items():
            if key not in rule:
                continue
            holds, reason = condition(rule[key], case)
            if holds is None:
                holds, reason = case.refuses, f"{reason}, which counts against it"
            reasons.append(f"{key}: {reason}")
            if not holds:
                result.why = reasons[-1]
                break
        else:
            result.holds = True
            result.why = "; ".join(reasons) or "it has no conditions"
            break
    return results


def _parse(text: str) -> dict[str, jsontext.Json]:
    rule = jsontext.parse(text, "a compiled rule of the policy")
    if not isinstance(rule, dict) or rule.get("then") not in (ALLOW, IGNORE, DENY):
        raise DocumentError("a compiled rule of the policy is damaged", hint=AGAIN)
    if set(rule) - set(CONDITIONS) - set(NOT_CONDITIONS) or "name" not in rule:
        raise DocumentError("a compiled rule of the policy has an unknown member", hint=AGAIN)
    return rule
