# SPDX-License-Identifier: Apache-2.0
"""Install pip into the environment of the running Python, from the index of PyPI.

For a user without root on a Debian without the package python3-venv: its venv then has no pip.
PIP_INDEX_URL names another index, which must answer in JSON (PEP 691).
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

INDEX = "https://pypi.org/simple"
FORMAT = "application/vnd.pypi.simple.v1+json"
TIMEOUT_S = 60


def _get(url: str, accept: str = "*/*") -> bytes:
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        data = answer.read()
        assert isinstance(data, bytes)
        return data


def release(listing: dict[str, list[dict[str, object]]]) -> tuple[str, str]:
    """Return URL and SHA-256 of the newest final release's wheel in a listing of PEP 691."""
    wheels = {}
    for file in listing["files"]:
        name, hashes = str(file["filename"]), file["hashes"]
        version = name.split("-")[1] if name.endswith("-py3-none-any.whl") else ""
        final = all(part.isdecimal() for part in version.split("."))
        if final and not file.get("yanked") and isinstance(hashes, dict) and "sha256" in hashes:
            wheels[tuple(map(int, version.split(".")))] = str(file["url"]), hashes["sha256"]
    return wheels[max(wheels)]


def main() -> int:
    """Install pip; return the exit status."""
    page = os.environ.get("PIP_INDEX_URL", INDEX).rstrip("/") + "/pip/"
    try:
        url, digest = release(json.loads(_get(page, FORMAT)))
        data = _get(urllib.parse.urljoin(page, url))
    except (OSError, ValueError, KeyError) as error:
        print(f"error: cannot get pip from {page}: {error}; install python3-venv", file=sys.stderr)
        return 1
    if hashlib.sha256(data).hexdigest() != digest:
        print(f"error: {url} has another SHA-256 than {page} says", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, url.rpartition("/")[2].partition("#")[0])
        wheel.write_bytes(data)
        command = [sys.executable, f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel)]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
