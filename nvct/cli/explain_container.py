# SPDX-License-Identifier: Apache-2.0
"""Prints for nvct explain how a container was or would be created, and which GPUs it has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nvct.cli import log, screen
from nvct.cli.context import say, settings_in_force
from nvct.cli.options import need_host, say_if_inside, show
from nvct.cli.screen import wrapped
from nvct.doctor import gpu_users, one_container
from nvct.doctor.model import count, date
from nvct.doctor.node import Node
from nvct.errors import NvctError, printable, shortened

LONGEST = 1000  # Characters of a line, which can hold texts from containers
HEADLINES = {
    "GPU": "The container would start with what it asks for.",
    "untouched": "The container would start as it is, without a GPU.",
    "refused": "The create would fail.",
}
COUNTED = {
    "nodes": "device node", "mounts": "mount", "env": "variable", "hooks": "hook", "gids": "group",
}  # fmt: skip
"""Nouns for what is injected, by the document's keys."""


def explain_existing(word: str, form: str) -> None:
    """Print what a container asked for, what was decided about it, and which GPUs it has.

    UsageError if no such container exists, and no decision about it is recorded.
    """
    need_host("explain")
    node = Node(settings=settings_in_force(), env=os.environ)
    uses, problem = [], ""
    found = one_container.find(node, word)
    try:
        uses = gpu_users.of_host(node.roots) if any(one.pid for one in found) else []
    except NvctError as error:
        problem = f"unknown: {error.message}"
    for warning in node.decisions.problems:
        say(f"warning: {warning}")
    told = [{**one_container.told(one, uses, node), "problem": problem} for one in found]
    if not any(one["decisions"] for one in told):
        say_if_inside()
    show(form, told, lines(told))


def lines(told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines about containers."""
    every = [(name, shortened(line, LONGEST)) for one in told for name, line in rows(one)]
    yield from _named(every, "  {:<9}", screen.columns())


def _named(rows: Sequence[tuple[str, str]], head: str, width: int) -> Iterator[str]:
    """Yield lines after their names; a name is printed once for consecutive lines."""
    before = ""
    for name, line in rows:
        shown = head.format("" if name == before else name) if name else ""
        yield from wrapped(shown, printable(line), width)
        before = name


def rows(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each line about a container."""
    runs = f"process {one['pid']}" if one["pid"] else "does not run"
    yield "", f"{one['name']}  (id {str(one['id'])[:12] or '-'}, {runs})"
    if one["creation"] is None:
        yield "decided", "nothing: it is in no container that is seen here"
    else:
        yield from _creation(one["creation"])
    for record in one["decisions"]:
        brief = f"{date(float(record['time']))} {record['outcome']} by {record['program']}"
        is_long = record["outcome"] == "refused" or "about" in record
        yield "decided", log.text(record) if is_long else brief
    for use in one["uses"]:
        mig = f", MIG device {use['instance']}" if use["instance"] else ""
        opened = f", open in {use['command']} ({use['pid']})" if use["pid"] else ""
        yield "has", f"GPU {use['gpu']}{mig}{opened}"
    if one["pid"] and not one["uses"]:
        none = "no GPU" if os.geteuid() == 0 else "no GPU that this user can see"
        nodes = f"{' '.join(one['nodes'])} in its /dev" if one["nodes"] else ""
        yield "has", nodes or one["problem"] or none


def _creation(creation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if creation["image"] or creation["engine"]:
        engine = f" ({creation['engine']})" if creation["engine"] else ""
        yield "image", f"{creation['image'] or 'unknown'}{engine}"
    for asked in creation["asked"]:
        by = f"by {asked['by']}" if asked["by"] else "by image or user: no file says which"
        yield "asked", f"{asked['text']}  ({by})"
    if creation["privileged"]:
        yield "asked", "it has CAP_SYS_ADMIN"
    for name in ("policy", "resolved", "went in"):
        yield from ((name, text) for text in creation[name])
    for part in creation["left out"]:
        yield "left out", left_out(part)
    if creation["took"]:
        steps = f": {creation['steps']}" if creation["steps"] else ""
        yield "took", f"{creation['took']}{steps}"
    for text in creation["unknown"]:
        yield "unknown", text


def text(document: dict[str, Any], *, everything: bool, width: int = 0) -> str:
    """Return the lines about a request."""
    rows = [*_rows(document), *_injected_rows(document.get("inject", {}), everything=everything)]
    rows += [("took", one) for one in _times(document)]
    return "\n".join(_named(rows, "{:<13}", width))


def _rows(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each line about the request and the decision."""
    yield "", HEADLINES[document["outcome"]]
    if document["error"]:
        yield "error", document["error"]["line"]
    config = document["config"]
    where = config["path"] if config["read"] else f"defaults: {config['path']} is not in force"
    rules = f"; {config['rules']} policy rules" if config["rules"] else ""
    yield "config", f"{where}; mode {config['mode']}; layout {config['layout']}{rules}"
    yield from (("config", one) for one in config["warnings"])
    yield from (("asked", one) for one in document["asked"] or ["nothing"])
    if document["privileged"]:
        yield "asked", "it has CAP_SYS_ADMIN"
    for step in document["policy"]:
        verdict = "decides" if step["holds"] else "does not hold"
        yield "policy", f"{step['rule']!r} ({step['then']}) {verdict}: {step['why']}"
    if document["request"]:
        yield from _request_rows(document)
    yield from (("note", one) for one in document["notes"])


def left_out(one: dict[str, Any]) -> str:
    """Return a sentence about a capability that the container does not get."""
    return f"{one['capability']} ({count(one['paths'], 'path')}): {one['why']}"


def _times(document: dict[str, Any]) -> Iterator[str]:
    """Yield the time of each step just now, and that of all steps in the recorded create."""
    yield "; ".join(
        f"{one['step']}{' ' if one['how'] else ''}{one['how']} {one['ms']:.1f} ms"
        for one in document["steps"]
    )
    if document["recorded"] and "took" in document["recorded"]:
        verb = "refused" if document["recorded"]["outcome"] == "refused" else "created"
        yield f"when it was {verb}: {document['recorded']['took']} in all"


def _request_rows(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    request = document["request"]
    ids = ", ".join(request["ids"]) or "the driver without a GPU"
    yield "request", f"{request['source']} asks for {ids}; mode {request['mode']}"
    if request["besides"]:
        yield "request", f"besides: {', '.join(request['besides'])}"
    for one in document["devices"]:
        yield "device", f"{one['name']} of {one['spec']}" if one["spec"] else one["name"]
    capabilities = request["capabilities"]
    words = "all but compat32" if capabilities is None else ", ".join(capabilities) or "none"
    yield "capabilities", words
    yield from (("left out", left_out(one)) for one in document["left out"])
    for one in document["requirements"]:
        host = "; ".join(
            ", ".join(f"{name} {value}" for name, value in facts.items() if value)
            for facts in one["host"]
        )
        verdict = {True: "holds", False: "does not hold", None: "is malformed"}[one["holds"]]
        yield "requirement", f"{one['variable']}={one['expression']} {verdict}; host: {host}"


def _injected_rows(inject: dict[str, Any], *, everything: bool) -> Iterator[tuple[str, str]]:
    if not inject:
        return
    counts = [count(len(inject[key]), name) for key, name in COUNTED.items() if inject[key]]
    if inject["removed hooks"]:
        counts.append(f"without {len(inject['removed hooks'])} prestart hooks of the incumbent")
    yield "injected", ", ".join(counts) or "nothing"
    if everything:
        yield from (("env", one) for one in inject["env"])
        yield from (("node", str(one.get("path"))) for one in inject["nodes"])
        for one in inject["mounts"]:
            yield "mount", f"{one.get('source')} -> {one.get('destination')}"
        for one in inject["hooks"]:
            yield "hook", f"{one['point']}: {' '.join(map(str, one.get('args', ())))}"
        yield from (("group", str(one)) for one in inject["gids"])
