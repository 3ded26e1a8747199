# SPDX-License-Identifier: Apache-2.0
"""What somebody does who has the agent's container: a program of the standard library alone.

It runs in that container: `python -I -c SOURCE COMMAND` with JSON as its input, and prints JSON.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

NAME = "planted"
KUBELETS = "kubelet"
"""How names of the kubelet's own files begin, which nvct has no part in."""
ANSWER_S = 20.0


def written(_: Any) -> list[str]:
    """Return the mount points of this container at which something can be written."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        points = [line.split()[4] for line in file]
    return sorted({point for point in points if _writes(point)})


def _writes(point: str) -> bool:
    path = f"{point.rstrip('/')}/{NAME}" if os.path.isdir(point) else point
    try:
        os.close(os.open(path, os.O_WRONLY | (os.O_CREAT if path != point else 0), 0o600))
    except OSError:
        return False
    if path != point:
        os.unlink(path)
    return True


def says(asked: Any) -> list[str]:
    """Send requests to the worker; return its answers, "" where it has ended the connection."""
    return [_said(asked["socket"], bytes.fromhex(text)) for text in asked["requests"]]


def _said(path: str, request: bytes) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            return connection.recv(size, socket.MSG_WAITALL).decode()
    return ""


def plant(asked: Any) -> list[str]:
    """Put something at each name in folders; return the kinds of things that could not be made."""
    refused = set()
    for folder in asked["folders"]:
        for path in {*_paths(folder), *(f"{folder}/{name}" for name in asked["names"])}:
            try:
                _remove(path)
                _put(asked["kind"], path, asked["target"])
            except OSError as error:
                refused.add(f"{asked['kind']}: {error.strerror}")
    return sorted(refused)


def _paths(folder: str) -> Iterator[str]:
    for name in os.listdir(folder):
        if not name.startswith(KUBELETS):
            yield f"{folder}/{name}"


def _put(kind: str, path: str, target: str) -> None:
    if kind == "link":
        os.symlink(f"{target}/precious", path)
    elif kind == "dangling":
        os.symlink(f"{target}/new", path)
    elif kind == "folder":
        os.symlink(target, path)
    elif kind == "fifo":
        os.mkfifo(path, 0o600)
    else:
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(7, 0))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def swap(asked: Any) -> int:
    """Exchange each name in folders with a link, and back, for a time; return how often."""
    end, count = time.monotonic() + asked["seconds"], 0
    while time.monotonic() < end:
        for folder in asked["folders"]:
            for path in {*_paths(folder), *(f"{folder}/{name}" for name in asked["names"])}:
                if path.endswith(".aside"):
                    continue
                with contextlib.suppress(OSError):
                    os.rename(path, f"{path}.aside")
                with contextlib.suppress(OSError):
                    os.symlink(f"{asked['target']}/precious", path)
                    count += 1
                with contextlib.suppress(OSError):
                    os.unlink(path)
                with contextlib.suppress(OSError):
                    os.rename(f"{path}.aside", path)
    return count


def processes(asked: Any) -> dict[str, Any]:
    """Return what process 1 is, which others are seen, and which of them took a signal.

    That kills each whose command has a word.
    """
    seen = {int(name): _command(name) for name in os.listdir("/proc") if name.isdigit()}
    killed = []
    for pid, command in seen.items():
        if asked["word"] in command and pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed.append(command)
    reached = []
    for pid in asked["pids"]:
        if pid not in seen:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                reached.append(pid)
    return {"first": seen[1], "seen": sorted(seen.values()), "killed": killed, "reached": reached}


def _command(pid: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        return file.read().replace("\0", " ").strip()
    return ""


COMMANDS = {"processes": processes, "written": written, "says": says, "plant": plant, "swap": swap}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](json.load(sys.stdin))))
