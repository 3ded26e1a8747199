# SPDX-License-Identifier: Apache-2.0
"""Reports the result of a create: on stderr, in the runtime's log and in the shim's log.

Hot, but loaded only to report. Engines show the last entry of the file in --log; containerd
reads the entry as JSON. Formats: runc 1.1 (logrus), `{"level": ..., "msg": ..., "time": ...}`. The
shim's log is the file in nvidia-container-runtime.debug, as the incumbent's (v1.20).
"""

from __future__ import annotations

import posix
import time

from nvct.errors import DocumentError, NvctError, line, unexpected
from nvct.linux.files import open_log
from nvct.oci.jsontext import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.container.decide import Decision
    from nvct.oci.argv import Invocation

LEVELS = ("info", "debug", "trace")  # decisions are logged at these; errors always
LIMIT = 2000  # characters of a log entry


def report(
    program: str, error: Exception, invocation: Invocation, logs: list[str], *, debug: bool = False
) -> NvctError:
    """Write the error as one line to stderr and to the logs; empty log names are skipped.

    Return the error; with `debug` (NVCT_DEBUG) an unexpected one shows its traceback.
    """
    problem = error if isinstance(error, NvctError) else unexpected(error)
    text = line(program, problem)
    _write(2, text + "\n")
    for log in dict.fromkeys(logs):
        if log:
            _append(log, "error", text, invocation.log_format)
    if debug and problem is not error:
        import traceback  # loaded only after a bug

        _write(2, "".join(traceback.format_exception(error)))
    return problem


def note(program: str, config: Config, invocation: Invocation, decision: Decision) -> None:
    """Append one line about the decision of a create to the shim's log."""
    request, edits = decision.request, decision.edits
    if config.log_level not in LEVELS and not invocation.debug:
        return
    if request is None:
        outcome = "asks for no GPU"
    else:
        nodes = sum([len(edit["nodes"]) for edit in edits])
        mounts = sum([len(edit["mounts"]) for edit in edits])
        hooks = sum([len(kind) for edit in edits for kind in edit["hooks"].values()])
        hooks += len([edit for edit in edits if "hook" in edit])
        outcome = (
            f"{request.source} asks for {request.asked}; mode"
            f" {request.mode}: {nodes} nodes, {mounts} mounts, {hooks} hooks"
        )
    text = "; ".join(
        [
            f"{program}: {invocation.command} of {invocation.bundle or '.'}: {outcome}",
            *decision.notes,
        ]
    )
    for warning in config.warnings:
        _append(config.debug, "warning", warning[:LIMIT], invocation.log_format)
    _append(config.debug, "info", text[:LIMIT], invocation.log_format)


def _append(log: str, level: str, text: str, log_format: str) -> None:
    """Append one entry; a log that cannot be written must not hide the error."""
    log_driver, colon, path = log.partition(":")
    if colon and log_driver in ("file", "journald", "syslog"):  # log drivers of crun
        if log_driver != "file":
            return
        log = path
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if log_format == "json":
        entry = f'{{"level":"{level}","msg":{quote(text)},"time":"{stamp}"}}\n'
    else:
        entry = f'time="{stamp}" level={level} msg={quote(text)}\n'
    try:
        fd = open_log(log)
    except (OSError, DocumentError):
        return
    _write(fd, entry)
    posix.close(fd)


def _write(fd: int, text: str) -> None:
    try:
        posix.write(fd, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
