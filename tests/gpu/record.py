# SPDX-License-Identifier: Apache-2.0
"""Record a machine with a GPU: all parts of `questions`, in one archive that has no UUIDs.

Each part is a process with a time limit, and a folder for its files. The archive grows after each
part by complete members, so a kill loses only the part that runs. Nothing here changes the card.
"""

import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from nvct.host.snapshot.redaction import Redactor, cleaned
from tests.gpu import nvml_calls

LIMIT_S = 480.0
"""Of all parts together."""
NOT_HERE = 77
"""The exit status of a part that this machine cannot have; its last line says why."""
LOG = "log.txt"
SERIAL = re.compile(r"(?i)((?:serial(?:[ _]number)?|pdi|guid)\s*[:=>]\s*)([^\s<,]+)")
CUT_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){1,3}\b(?!-)")
"""As nvidia-cuda-mps-control's ps prints it."""
SERIAL_KEY = re.compile(r"(?i)(serial(_?number)?|pdi|guid)$")
"""Numbers of a board, which are no UUIDs: in texts of nvidia-smi, and as keys of JSON."""
LEFT_OUT = "(left out)"


class Part(NamedTuple):
    """A function of `questions`, and its time limit in seconds."""

    name: str
    limit_s: int


PARTS = (
    Part("machine", 60),
    Part("smi", 120),
    Part("nvml", 60),
    Part("snapshot", 60),
    Part("trees", 40),
    Part("agents", 60),
    Part("chain", 150),
    Part("image", 150),
    Part("busy", 60),
    Part("compare", 90),
    Part("health", 90),
    Part("mps", 90),
    Part("fields", 60),
    Part("every", 30),
    Part("fault", 60),
)


class Archive:
    """A .tar.gz that is a gzip member for each file: what was added before a kill can be read."""

    def __init__(self, path: Path, redactor: Redactor) -> None:
        """Begin with an empty file."""
        self._path, self._redactor = path, redactor
        path.write_bytes(b"")

    def _clean(self, value: Any) -> Any:
        def text(text: str) -> str:
            text = CUT_UUID.sub(rf"\1-{LEFT_OUT}", self._redactor.text(text))
            return SERIAL.sub(rf"\1{LEFT_OUT}", text)

        return cleaned(value, text, lambda key: SERIAL_KEY.search(key) is not None)

    def add(self, name: str, text: str) -> None:
        """Add a text without UUIDs, serial numbers, addresses, and names of the host."""
        if name.endswith(".json"):
            text = json.dumps(self._clean(json.loads(text)), indent=1)
        elif name.endswith(".jsonl"):
            lines = (self._clean(json.loads(line)) for line in text.splitlines())
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
        else:
            text = self._clean(text)
        data = text.encode(errors="replace")
        member = tarfile.TarInfo(name)
        member.size = len(data)
        padding = -len(data) % tarfile.BLOCKSIZE
        block = member.tobuf(tarfile.PAX_FORMAT) + data + bytes(padding)
        with self._path.open("ab") as file:
            file.write(gzip.compress(block, mtime=0))
            os.fsync(file.fileno())


def run(path: Path, work: Path, parts: tuple[Part, ...] = PARTS, limit_s: float = LIMIT_S) -> int:
    """Record this machine into an archive and print a line for each part.

    Args:
        path: of the archive.
        work: a folder for the parts' files.
        parts: to run, the most important first.
        limit_s: for all of them, in seconds.

    Returns:
        1 if a part failed or ran out of time, else 0.
    """
    archive = Archive(path, Redactor([os.uname().nodename, os.environ.get("USER", "")]))
    end, faults, table = time.monotonic() + limit_s, 0, ""
    for part in parts:
        folder = work / part.name
        folder.mkdir()
        since = time.monotonic()
        status, verdict = ask(part, folder, min(part.limit_s, end - since))
        faults += status not in (0, NOT_HERE)
        word = {0: "ok", NOT_HERE: "not here"}.get(status, "FAULT")
        line = f"{word:9}{part.name:9}{time.monotonic() - since:6.1f} s  {verdict}"
        print(line, flush=True)
        table += f"{line}\n"
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink():
                name = f"{part.name}/{file.relative_to(folder)}"
                archive.add(name, file.read_text(encoding="utf-8", errors="replace"))
        shutil.rmtree(folder)
    archive.add("table.txt", table)
    print(f"{path}: {path.stat().st_size >> 10} KiB; read it before you pass it on")
    return 1 if faults else 0


def ask(part: Part, folder: Path, limit_s: float) -> tuple[int, str]:
    """Run a part, and return its exit status and the last line that it printed."""
    if limit_s <= 0:
        return 1, "there was no time left"
    log = folder / LOG
    env = {**os.environ, nvml_calls.LOG_ENV: str(folder / "nvml-calls.jsonl")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.questions", part.name, str(folder)],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(limit_s)
            late = ""
        except subprocess.TimeoutExpired:
            status, late = 1, f"ended after {limit_s:.0f} s; before: "
        finally:
            try:  # what the part started and left
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    lines = log.read_text(errors="replace").split("\n")
    return status, late + next((line for line in reversed(lines) if line.strip()), "")


def read(path: Path) -> dict[str, str]:
    """Return the texts of an archive by name; one that was cut off is read as far as it goes."""
    raw, data = path.read_bytes(), b""
    while raw:
        member = zlib.decompressobj(31)  # a gzip header
        text = member.decompress(raw)
        raw, data = member.unused_data, data + (text if member.eof else b"")
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(data + bytes(2 * tarfile.BLOCKSIZE))) as archive:
        for entry in archive:
            content = archive.extractfile(entry)
            texts[entry.name] = content.read().decode() if content else ""
    return texts


def save_json(path: Path, value: object) -> None:
    """Write a value as a part's file, a line for each of its lines."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True, default=str) + "\n")
