# SPDX-License-Identifier: Apache-2.0
"""An API server with one Node, so that the agent is measured at rest and not as it connects.

It takes every object that is written and gives it back. A watch shows the Node once, and then
nothing. It runs in threads of the measuring process, whose time does not count.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "node"
PATH = f"/api/v1/nodes/{NAME}"
CONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: a, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: a, user: {{}}}}]
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
current-context: a
"""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a get or a watch."""
        path, _, query = self.path.partition("?")
        node = self.server.objects[PATH]  # type: ignore[attr-defined]
        if "watch=" in query:
            self._send({"type": "ADDED", "object": node}, is_stream=True)
            self.server.stopped.wait()  # type: ignore[attr-defined]
            self.close_connection = True
        else:
            self._send(self.server.objects.get(path, node))  # type: ignore[attr-defined]

    def do_PATCH(self) -> None:
        """Answer an apply."""
        path = self.path.partition("?")[0].removesuffix("/status")
        objects = self.server.objects  # type: ignore[attr-defined]
        written = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        before = objects.get(path, {})
        metadata = {**before.get("metadata", {}), **written.get("metadata", {})}
        objects[path] = {**before, **written, "metadata": metadata}
        self._send(objects[path])

    do_POST = do_PATCH  # noqa: N815 - a name of http.server

    def _send(self, document: dict[str, Any], *, is_stream: bool = False) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if is_stream:
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%s\r\n" % (len(body), body)
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Do not log."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve while the context lasts; yield the text of a kubeconfig."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    metadata = {"name": NAME, "uid": "1", "resourceVersion": "1", "labels": {}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {}}
    server.objects = {PATH: node}  # type: ignore[attr-defined]
    server.stopped = threading.Event()  # type: ignore[attr-defined]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield CONFIG.format(port=server.server_port)
    finally:
        server.stopped.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
