# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a running engine is well and has the runtimes of its files.

dockerd and CRI-O answer HTTP on their sockets. containerd is asked by its client ctr, which also
reports a CRI plugin that failed to load while the daemon itself runs.
"""

from __future__ import annotations

import json
import socket
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias, TypeVar

from nvct.engine import command
from nvct.engine.command import Run

Ask: TypeAlias = Callable[[str, str], tuple[int, bytes]]
Kind = TypeVar("Kind")

TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 5.0
PAUSE_S = 0.1
ANSWER_LIMIT = 16 << 20
CRI_PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.grpc.v1", "io.containerd.cri.v1")


def ask(path: str, target: str) -> tuple[int, bytes]:
    """Return status and body of an HTTP GET over a Unix socket.

    Raises:
        OSError: nobody answers.
    """
    import http.client

    connection = http.client.HTTPConnection("localhost", timeout=ANSWER_TIMEOUT_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        connection.sock.connect(path)
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_LIMIT)
    except http.client.HTTPException as error:
        raise OSError(0, f"no answer that can be read: {error!r}") from error
    finally:
        connection.close()


def wait(find_problem: Callable[[], str], timeout_s: float = TIMEOUT_S) -> str:
    """Wait until there is no problem any more; return the one that is left when time is over."""
    end = time.monotonic() + timeout_s
    while problem := find_problem():
        if time.monotonic() >= end:
            break
        time.sleep(PAUSE_S)
    return problem


def find_problem(engine: str, path: str, names: Collection[str], run: Run) -> str:
    """Return what is wrong with an engine that has to list some runtimes; "" if nothing is."""
    try:
        if engine == "docker":
            missing = sorted(set(names) - runtimes(path))
            return f"it does not list the runtime {missing[0]}" if missing else ""
        if engine == "crio":
            status, _ = ask(path, "/info")
            return "" if status == 200 else f"{path} answers {status}"
        return _containerd_problem(path, run)
    except OSError as error:
        return f"{path}: {error.strerror or error}"


def reloaded(path: str, since: float) -> bool:
    """Report whether dockerd has sent its event `reload` (Docker Engine API, GET /events).

    It sends none if it refuses its files.
    """
    filters = urllib.parse.quote('{"type":["daemon"],"event":["reload"]}')
    try:
        status, body = ask(
            path, f"/events?since={since:.9f}&until={time.time():.9f}&filters={filters}"
        )
    except OSError:
        return False
    return status == 200 and b"reload" in body


def runtimes(path: str) -> set[str]:
    """Return the runtimes that dockerd lists.

    Raises:
        OSError: it does not answer.
    """
    status, body = ask(path, "/info")
    try:
        if status == 200:
            return set(member(document(body), "Runtimes", dict, {}))
    except ValueError:
        pass
    raise OSError(0, f"GET /info answers {status}, and no list of runtimes")


def document(body: bytes) -> dict[str, object]:
    """Return the JSON object in a daemon's answer.

    Raises:
        ValueError: the answer is something else.
    """
    try:
        data = json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("it is no object")  # noqa: TRY004  as json's own errors
    return data


def member(data: Mapping[str, object], name: str, kind: type[Kind], default: Kind) -> Kind:
    """Return a member of an answer; a default if it is null or missing.

    Raises:
        ValueError: it is of another kind.
    """
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r:.60}")  # noqa: TRY004  as json's own errors
    return value


def _containerd_problem(path: str, run: Run) -> str:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_TIMEOUT_S)
        connection.connect(path)
    finally:
        connection.close()
    completed = run(["ctr", f"--address={path}", "plugins", "ls"], ANSWER_TIMEOUT_S)
    if completed.status == command.NOT_FOUND:
        return ""  # it listens; without ctr nothing more can be known
    return completed.reason if completed.status else failed_plugin(completed.out)


def failed_plugin(table: str) -> str:
    """Return which CRI plugin failed to load by the table of `ctr plugins ls`, "" for none."""
    for line in table.splitlines():
        columns = line.split()
        cri = columns[:1] and (columns[0] in CRI_PLUGINS[2:] or columns[1:2] == ["cri"])
        if cri and columns[-1] == "error":
            return f"its plugin {columns[0]}.{columns[1]} fails to load"
    return ""
