# SPDX-License-Identifier: Apache-2.0
"""The worker: answers a session's requests, with the driver's library in its own process.

To add a verb, write a function that takes `Calls` and the request's arguments, and add its module
to VERBS, and a method to `session.NvmlSession` that names the type of its value.

Contract: reads only the socket, and needs no state of the process that started it, so it can run
in another container that shares the socket. gRPC is never imported here.
"""

from __future__ import annotations

import math
import os
from _socket import socket
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from nvct import errors, typed
from nvct.errors import NvctError, NvmlError
from nvct.host.nvml import calls, each_gpu, messages
from nvct.host.nvml.calls import Calls, Load
from nvct.host.nvml.mig_model import CHANGES
from nvct.host.nvml.process import DEBUG_ENV
from nvct.linux.deadline import Deadline
from nvct.oci.jsontext import Json

PACKAGE = "nvct.host.nvml"


def check(_nvml: Calls) -> None:
    """Do nothing: the library is loaded and initialized before a verb runs."""


VERBS: Mapping[str, str] = {
    **dict.fromkeys(
        ("attributes", "conditions", "preflight", "readiness", "topology"), "attributes"
    ),
    **dict.fromkeys(("mig", *(verb for verb, _ in CHANGES.values())), "mig"),
    **dict.fromkeys(("properties", "report"), "report"),
    "check": "worker",
    "events": "events",
    "samples": "samples",
}
"""The module with the function of each verb's name; no process uses, and so imports, all."""


def serve(connection: socket, path: str, load: Load = calls.load, root: str | None = None) -> None:
    """Answer requests until the session closes the connection; `root` as in `NvmlSession`.

    The end of the process closes NVML's handles: nvmlShutdown would wait up to a second for the
    thread of `events`. MalformedMessageError if the session does not speak the protocol.
    """
    if root is not None:
        load = partial(calls.load_below, root)
    driver = calls.Driver(path, load, each_gpu.is_hanging)
    try:
        while True:
            number, verb, arguments = messages.request_of(messages.receive(connection))
            messages.write(connection, _answer(driver, number, verb, arguments))
    except EOFError:
        pass


def _answer(driver: calls.Driver, number: int, verb: str, arguments: dict[str, Json]) -> bytes:
    """Return an answer with a value or an error; a value that is not JSON becomes an error."""
    words: dict[str, object] = {**arguments}
    limit_s = words.pop(messages.CALL_LIMIT, None)
    timed_s = limit_s - each_gpu.MARGIN_S if isinstance(limit_s, (int, float)) else math.inf
    deadline = Deadline(timed_s, os.getpid())
    try:
        value = driver.ask(_function(verb), words, deadline)
        return messages.encode({"id": number, "value": typed.dump(value)})
    except NvctError as error:
        failure = error
    except Exception as error:  # the last resort of this process: the session raises it
        if DEBUG_ENV in os.environ:
            import traceback  # 3 ms

            traceback.print_exc()
        failure = errors.unexpected(error)
    return messages.encode({"id": number, "error": {**errors.to_dict(failure)}})


def _function(verb: str) -> Callable[..., object]:
    module = VERBS.get(verb)
    if module is None:
        raise NvmlError(
            f"NVML's worker process has no verb {verb!r}", hint="it is of another version of nvct"
        )
    function: Callable[..., object] = getattr(import_module(f"{PACKAGE}.{module}"), verb)
    return function
