# SPDX-License-Identifier: Apache-2.0
"""Prints what `explanation.explain` found about a request, for nvct explain. Contract: pure."""

from __future__ import annotations

from nvct.cli.screen import wrapped
from nvct.doctor.model import count
from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HEADLINES = {
    "GPU": "The container would start with what it asks for.",
    "untouched": "The container would start as it is, without a GPU.",
    "refused": "The create would fail.",
}


def text(told: dict[str, Any], *, everything: bool, width: int = 0) -> str:
    """Return the lines about a request.

    Args:
        told: what `explanation.explain` found.
        everything: whether all is listed that would be injected.
        width: of a terminal, 0 for no limit.
    """
    rows = [("", HEADLINES[told["outcome"]])]
    if told["error"]:
        rows.append(("error", told["error"]["line"]))
    rows += _config_rows(told["config"])
    rows += [("asked", one) for one in told["asked"]] or [("asked", "nothing")]
    if told["privileged"]:
        rows.append(("asked", "it has CAP_SYS_ADMIN"))
    for step in told["policy"]:
        verdict = "decides" if step["holds"] else "does not hold"
        rows.append(("policy", f"{step['rule']!r} ({step['then']}) {verdict}: {step['why']}"))
    if told["request"]:
        rows += _request_rows(told)
    rows += [("note", one) for one in told["notes"]]
    rows += _injected_rows(told.get("inject", {}), everything=everything)
    rows += [("took", one) for one in _times(told)]
    lines: list[str] = []
    before = ""
    for name, line in rows:
        head = f"{'' if name == before else name:13}" if name else ""
        lines += wrapped(head, printable(line), width)
        before = name
    return "\n".join(lines)


def left_out(one: dict[str, Any]) -> str:
    """Return a sentence about a capability that the container does not get."""
    return f"{one['capability']} ({count(one['paths'], 'path')}): {one['why']}"


def _times(told: dict[str, Any]) -> Iterator[str]:
    """Yield how long each step took just now, and all of them when the container was created."""
    yield "; ".join(
        f"{one['step']}{' ' if one['how'] else ''}{one['how']} {one['ms']:.1f} ms"
        for one in told["steps"]
    )
    if told["recorded"] and "took" in told["recorded"]:
        verb = "refused" if told["recorded"]["outcome"] == "refused" else "created"
        yield f"when it was {verb}, all of it took {told['recorded']['took']}"


def _config_rows(config: dict[str, Any]) -> list[tuple[str, str]]:
    where = config["path"] if config["read"] else f"defaults: {config['path']} is not in force"
    rules = f"; {config['rules']} policy rules" if config["rules"] else ""
    text = f"{where}; mode {config['mode']}; layout {config['layout']}{rules}"
    return [("config", text), *(("config", one) for one in config["warnings"])]


def _request_rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    request = told["request"]
    ids = ", ".join(request["ids"]) or "the driver without a GPU"
    rows = [("request", f"{request['source']} asks for {ids}; mode {request['mode']}")]
    if request["besides"]:
        rows.append(("request", f"besides: {', '.join(request['besides'])}"))
    rows += [
        ("device", f"{one['name']}" + (f" of {one['spec']}" if one["spec"] else ""))
        for one in told["devices"]
    ]
    capabilities = request["capabilities"]
    words = "all but compat32" if capabilities is None else ", ".join(capabilities) or "none"
    rows.append(("capabilities", words))
    rows += [("left out", left_out(one)) for one in told["left out"]]
    for one in told["requirements"]:
        host = "; ".join(
            ", ".join(f"{name} {value}" for name, value in facts.items() if value)
            for facts in one["host"]
        )
        verdict = {True: "holds", False: "does not hold", None: "is malformed"}[one["holds"]]
        rows.append(
            ("requirement", f"{one['variable']}={one['expression']} {verdict}; host: {host}")
        )
    return rows


def _injected_rows(inject: dict[str, Any], *, everything: bool) -> list[tuple[str, str]]:
    counts = [
        f"{len(inject[key])} {name}{'s' if len(inject[key]) > 1 else ''}"
        for key, name in (
            ("nodes", "device node"), ("mounts", "mount"), ("env", "variable"),
            ("hooks", "hook"), ("gids", "group"),
        )
        if inject.get(key)
    ]  # fmt: skip
    if inject.get("removed hooks"):
        counts.append(f"without {len(inject['removed hooks'])} prestart hooks of the incumbent")
    rows = [("injected", ", ".join(counts) or "nothing")] if inject else []
    if everything:
        rows += [("env", one) for one in inject.get("env", ())]
        rows += [("node", str(one.get("path"))) for one in inject.get("nodes", ())]
        rows += [
            ("mount", f"{one.get('source')} -> {one.get('destination')}")
            for one in inject.get("mounts", ())
        ]
        rows += [
            ("hook", f"{one['point']}: {' '.join(map(str, one.get('args', ())))}")
            for one in inject.get("hooks", ())
        ]
        rows += [("group", str(one)) for one in inject.get("gids", ())]
    return rows
