# SPDX-License-Identifier: Apache-2.0
"""The agent's answers to GET, and to POST /yield, which only its own socket accepts.

The port, which everybody in the cluster can reach, shows states without reasons and details,
because these name GPUs, pods and claims of all tenants.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from nvct.agent.core.task import KeptTask
from nvct.agent.web import exposition, http
from nvct.agent.web.exposition import Family, family
from nvct.agent.web.http import Answer, Request
from nvct.oci.jsontext import Json
from nvct.version import __version__

Part: TypeAlias = Literal["starting", "waiting", "serving", "standby"]


JSON = "application/json"
READY = ("listed", "written")
"""States of a task's parts: resources that the kubelet has listed, labels that were written."""
ON_THE_NODE = "on the node, nvct agent --status says why"  # The port's reason


@dataclass()
class Status:
    """The state of the agent and its tasks."""

    tasks: Sequence[KeptTask]
    # returns why NVML does not answer, "" if it does, None if it was not asked
    nvml_problem: Callable[[], str | None] = lambda: None
    # the state of this process: it starts, waits for a GPU, serves its node, or stands by while
    # another one serves it
    part: Part = "starting"
    health: Callable[[], dict[str, Json] | None] = lambda: None
    # returns why the driver must not be used now, "" if it may be used; and whether this process
    # has closed all of its files
    refusal: Callable[[], tuple[str, bool]] = lambda: ("", False)

    def open_answer(self, request: Request) -> Answer:
        """Return the answer to a request on the port, which anybody can send."""
        return self.answer(request, in_full=False)

    def answer(self, request: Request, *, in_full: bool = True) -> Answer:
        """Return the answer to a request; `in_full`: with reasons and details, for root."""
        if request.method != "GET":
            return Answer(404, "only GET is supported\n")
        if request.path in (probes := self._probes()):
            reason = probes[request.path]()
            reason = reason if in_full or not reason else ON_THE_NODE
            return Answer(503, f"failed: {reason}\n") if reason else Answer(200, "ok\n")
        if request.path in ("/status", "/") and request.accepts_html:
            title = f"nvct agent on {os.uname().nodename}"
            return Answer(200, page(title, self._shown(in_full)), HTML)
        if request.path == "/status":
            return Answer(200, json.dumps(self._shown(in_full), indent=2) + "\n", JSON)
        if request.path == "/metrics":
            return Answer(200, exposition.text(self.metrics()), exposition.CONTENT_TYPE)
        names = ", ".join(("/status", "/metrics", *self._probes()))
        return Answer(404, f"unknown path; use GET {names}\n")

    def _probes(self) -> Mapping[str, Callable[[], str]]:
        """Return by path a function that returns why a probe fails, "" if it succeeds."""
        return {"/healthz": self.failure, "/livez": lambda: "", "/readyz": self.why_not_ready}

    def why_not_ready(self) -> str:
        """Return why this process does not serve its node yet, "" if it does."""
        if self.part == "starting":
            problem = self.nvml_problem()
            why = f": {problem}" if problem else ""
            return f"this agent has not taken over the node yet{why}"
        if self.part == "standby":
            return "another agent serves this node"
        return why_not_ready(self.document(), os.uname().nodename)

    def failure(self) -> str:
        """Return which tasks have failed and why, "" if none has."""
        failed = [task for task in self.tasks if task.state == "failed"]
        return "; ".join(f"{task.name}: {task.reason}" for task in failed)

    def document(self) -> dict[str, Any]:
        """Return what /status shows."""
        problem = self.nvml_problem()
        nvml = {None: "not asked", "": "answers"}.get(problem, "fails")
        refusal, is_let_go = self.refusal()
        if refusal:
            nvml, problem = ("released" if is_let_go else "closing"), refusal
        return {
            "version": __version__,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "state": self.part,
            "nvml": {"state": nvml, "reason": problem or ""},
            "health": self.health() or {},
            "tasks": [
                {
                    "name": task.name,
                    "state": task.state,
                    "reason": task.reason,
                    "restarts": task.restarts,
                    "detail": work.describe() if (work := task.work()) else None,
                }
                for task in self.tasks
            ],
        }

    def _shown(self, in_full: bool) -> dict[str, Any]:  # noqa: FBT001
        """Return the document; unless `in_full`, only what names no GPU and no tenant."""
        document = self.document()
        if in_full:
            return document
        tasks = [
            {key: task[key] for key in ("name", "state", "restarts")} for task in document["tasks"]
        ]
        nvml = {"state": document["nvml"]["state"]}
        kept = {key: document[key] for key in ("version", "host", "pid", "state")}
        return {**kept, "nvml": nvml, "tasks": tasks, "details": ON_THE_NODE}

    def metrics(self) -> Iterator[Family]:
        """Yield the metrics of the agent and its tasks."""
        yield family("nvct_agent_info", "Version of the agent.", [(1, {"version": __version__})])
        state = [(1, {"state": self.part})]
        yield family("nvct_agent_state", "What this agent does: 1 for its state.", state)
        help_text = "Whether NVML has answered the last request of the agent."
        yield family("nvct_agent_nvml_up", help_text, [(float(self.nvml_problem() == ""), {})])
        for task in self.tasks:
            labels = {"task": task.name}
            help_text = "State of a task: 1 for the one that it is in."
            rows = [(1, {**labels, "state": task.state})]
            yield family("nvct_agent_task_state", help_text, rows)
            help_text = "How often a task was started again after a failure."
            restarts = [(task.restarts, labels)]
            yield family("nvct_agent_task_restarts_total", help_text, restarts)
            if work := task.work():
                yield from work.metrics()


def with_yield(status: Status, ends: Mapping[str, Callable[[], None]]) -> http.Server:
    """Return the server for the agent's own socket, where another instance can ask it to yield.

    `ends`: the function that a POST calls, by path.
    """

    def answer(request: Request) -> Answer:
        if request.method == "POST" and request.path in ends:
            ends[request.path]()
            return Answer(200, "it yields\n")
        return status.answer(request)

    return http.Server(answer)


def why_not_ready(document: Any, host: str) -> str:  # noqa: ANN401  JSON data
    """Return why the agent on a host does not serve its node yet, "" if it does.

    `document`: /status of the instance that serves. `host`: this host's name; each pod has
    another.
    """
    if document["host"] != host:
        return f"{document['host']} serves this node"
    for task in document["tasks"]:
        if task["state"] == "failed":
            return f"{task['name']} has failed: {task['reason']}"
        for part in task["detail"] or ():
            if part.get("state") not in (*READY, None):
                reason = f": {part['reason']}" if part.get("reason") else ""
                return f"{part['resource']} is {part['state']}{reason}"
    return ""


HTML = "text/html; charset=utf-8"
STYLE = (
    "body{font:15px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}"
)


def page(title: str, document: Json) -> str:
    """Return JSON data as an HTML page with a title: tables, no script, all text escaped."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_escaped(title)}'
        f"</title><style>{STYLE}</style></head>\n<body><h1>{_escaped(title)}</h1>\n"
        f"{_cell(document)}\n</body></html>\n"
    )


def _cell(value: Json) -> str:
    if isinstance(value, dict) and value:
        rows = (f"<tr><th>{_escaped(k)}</th><td>{_cell(v)}</td></tr>" for k, v in value.items())
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list) and value:
        if all(isinstance(row, dict) for row in value):
            return _columns([row for row in value if isinstance(row, dict)])
        return "<br>".join(_cell(member) for member in value)
    return "" if value in (None, {}, []) else _escaped(str(value))


def _columns(rows: list[dict[str, Json]]) -> str:
    """Return a table with a row for each object, and a column for each of their keys."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{_escaped(key)}</th>" for key in keys)
    lines = (
        f"<tr>{''.join(f'<td>{_cell(row.get(key))}</td>' for key in keys)}</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{''.join(lines)}</table>"


def _escaped(text: str) -> str:
    from html import escape  # its tables take half a megabyte

    return escape(text)
