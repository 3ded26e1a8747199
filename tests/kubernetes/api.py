# SPDX-License-Identifier: Apache-2.0
"""API of a test's cluster, by `kubectl proxy` on a Unix socket; a request takes milliseconds."""

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.cpu import Limit

Object: TypeAlias = dict[str, Any]

TIMEOUT_S = 30.0
LOOK_S = 0.2
"""Between two looks of `wait`: a look at a pod costs 5 ms of CPU time, most of it the API server's."""
DEFAULT = "/api/v1/namespaces/default"
PODS = f"{DEFAULT}/pods"
MERGE = "application/merge-patch+json"


class ApiError(Exception):
    """The API server refuses a request."""

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        try:
            self.message = json.loads(body)["message"]
        except (ValueError, LookupError):
            self.message = body
        super().__init__(f"{status}: {self.message}")


class Api:
    """Requests to the API server."""

    def __init__(self, path: Path) -> None:
        """Use the proxy at a socket, which may not exist yet."""
        self._path = path

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        kind: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Return the answer to a request.

        Raises:
            ApiError: the server refuses it.
            OSError: the proxy does not answer.
        """
        connection = _UnixConnection(str(self._path))
        try:
            data = None if body is None else json.dumps(body)
            types = {"Content-Type": kind or "application/json"}
            connection.request(method, path, data, {**types, **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise ApiError(answer.status, text)
        return text

    def is_ready(self) -> bool:
        """Report whether the API server answers and is ready."""
        try:
            return self.request("GET", "/readyz") == "ok"
        except (ApiError, OSError):
            return False

    def get(self, path: str) -> Object:
        """Return an object, which is there."""
        found: Object = json.loads(self.request("GET", path))
        return found

    def find(self, path: str) -> Object | None:
        """Return an object, None if there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return None

    def create(self, path: str, body: Object) -> None:
        """Create an object in a collection."""
        self.request("POST", path, body)

    def make(self, path: str, body: Object) -> None:
        """Create an object, unless it is there."""
        try:
            self.create(path, body)
        except ApiError as error:
            if error.status != http.client.CONFLICT:
                raise

    def patch(self, path: str, body: Object) -> None:
        """Merge fields into an object; null removes one."""
        self.request("PATCH", path, body, MERGE)

    def delete(self, path: str) -> None:
        """Delete an object without a grace period; a missing object is not an error."""
        now = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        try:
            self.request("DELETE", path, now)
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise

    def logs(self, pod: str, container: str = "") -> str:
        """Return the log of a pod's container."""
        chosen = f"?container={container}" if container else ""
        return self.request("GET", f"{PODS}/{pod}/log{chosen}")

    def events(self, name: str) -> list[str]:
        """Return the messages of an object's events, oldest first."""
        found = self.get(f"{DEFAULT}/events?fieldSelector=involvedObject.name%3D{name}")
        return [event["message"] for event in found["items"]]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def wait(holds: Callable[[], object], timeout_s: float = TIMEOUT_S) -> bool:
    """Wait until a condition holds; return False if the time is up."""
    limit = Limit(timeout_s)
    while not holds():
        if limit.is_over:
            return False
        time.sleep(LOOK_S)
    return True
