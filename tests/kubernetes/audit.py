# SPDX-License-Identifier: Apache-2.0
"""Requests that the API server of a test's cluster has recorded, and the rights that a chart grants.

A right is one line of the table in docs/kubernetes.md: an account, a verb and a resource.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.kubernetes.rendering import objects_of

NAMESPACE = "nvct"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:"
ERROR = 400
FORBIDDEN = 403
REFUSED = (401, FORBIDDEN, 422)
"""422 is the answer of an admission policy."""


class Right(NamedTuple):
    """What an account may do, or does."""

    account: str
    verb: str
    resource: str


class Request(NamedTuple):
    """A request to the API server, as its audit log has it.

    Attributes:
        user: as the API server names it.
        resource: with its subresource, `nodes/status`.
        name: of the object, "" for a collection.
        status: HTTP's; 0 while a watch is going on.
    """

    user: str
    verb: str
    resource: str
    name: str
    status: int

    @property
    def right(self) -> Right:
        """Return the right that an account of nvct needs for it."""
        return Right(self.user.removeprefix(ACCOUNT), self.verb, self.resource)


def requests(log: Path, start: int = 0) -> list[Request]:
    """Return the requests that begin after an offset of the log, each once."""
    by_id: dict[str, Request] = {}
    with log.open("rb") as file:
        file.seek(start)
        for line in file.read().splitlines():
            event = json.loads(line)
            is_end = event["stage"] == "ResponseComplete" and event["verb"] == "watch"
            if (
                is_end
                and event["auditID"] not in by_id
                and event["responseStatus"]["code"] < ERROR
            ):
                continue  # of a watch that began before
            by_id[event["auditID"]] = _request(event)
    return list(by_id.values())


def of_accounts(found: Iterable[Request]) -> list[Request]:
    """Return the requests of nvct's accounts."""
    return [request for request in found if request.user.startswith(ACCOUNT)]


def refused(log: Path, start: int = 0) -> list[Request]:
    """Return the requests of nvct's accounts that the API server did not allow.

    One that it allowed later is none of them: it learns of a new role a moment after it has it.
    """
    found = of_accounts(requests(log, start))
    allowed: set[tuple[str, ...]] = set()
    kept = []
    for request in reversed(found):
        if request.status not in REFUSED:
            allowed.add(request[:4])
        elif request.status != FORBIDDEN or request[:4] not in allowed:
            kept.append(request)
    return kept[::-1]


def granted(manifest: str) -> set[Right]:
    """Return the rights that the roles of rendered manifests grant to accounts."""
    objects = objects_of(manifest)
    rules = {
        (each["kind"], each["metadata"]["name"]): each["rules"]
        for each in objects
        if each["kind"] in ("ClusterRole", "Role")
    }
    return {
        Right(subject["name"], verb, resource)
        for each in objects
        if each["kind"].endswith("RoleBinding")
        for subject in each["subjects"]
        for rule in rules[each["roleRef"]["kind"], each["roleRef"]["name"]]
        for verb, resource in _pairs(rule)
    }


def documented(page: str) -> set[Right]:
    """Return the rights in the table of a page that begins with account, verb and resource."""
    lines = page.partition("| account | verb | resource |")[2].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {
        Right(account.strip("`"), verb, resource)
        for account, verbs, resource, *_ in rows
        for verb in verbs.split(", ")
    }


def _pairs(rule: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for verb in rule["verbs"]:
        for resource in rule["resources"]:
            yield verb, resource


def _request(event: dict[str, Any]) -> Request:
    target = event.get("objectRef", {})
    parts = [target.get(key, "") for key in ("resource", "subresource")]
    return Request(
        event["user"]["username"],
        event["verb"],
        "/".join(filter(None, parts)),
        target.get("name", ""),
        event.get("responseStatus", {}).get("code", 0),
    )
