# SPDX-License-Identifier: Apache-2.0
"""Render the chart into manifests for clusters without helm (`make manifests`).

::

    .venv/bin/python packaging/kubernetes/render.py --helm PROGRAM --out FOLDER
    FOLDER/nvct.yaml       what the chart installs, with its namespace
    FOLDER/uninstall.yaml  what gives the nodes their files back, before nvct.yaml is deleted
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHART = HERE.parent / "helm/nvct"
TABLES = HERE.parents[1] / "nvct/agent/manifests/chart_values.yaml"
"""Of values of NVIDIA's charts; the chart has a copy."""
NAME = "nvct"
"""Of the release and of the namespace."""
OF_HELM = re.compile(r"^ +(app.kubernetes.io/managed-by|helm.sh/\S+): .*\n", re.MULTILINE)
SOURCE = re.compile(r"^# Source: .*\n", re.MULTILINE)
EMPTY = re.compile(r"^ +annotations:\n(?=spec:)", re.MULTILINE)
HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Rendered from packaging/helm/nvct by `make manifests`: do not edit. README.md says how to use it.
"""
NAMESPACE = f"""\
---
apiVersion: v1
kind: Namespace
metadata:
  name: {NAME}
  labels:
    pod-security.kubernetes.io/enforce: privileged
"""
UNINSTALL = "templates/uninstall-nodes.yaml"
SETTINGS: dict[str, list[str]] = {
    "nvct.yaml": ["--no-hooks", "--set=uninstall.enabled=false"],
    "uninstall.yaml": [f"--show-only={UNINSTALL}"],
}
"""By file: words for helm template."""


def main() -> None:
    """Write the manifests, and print their paths.

    Raises:
        SystemExit: helm fails; nothing is written.
    """
    parser = argparse.ArgumentParser(description="Render the chart's manifests.")
    parser.add_argument("--helm", required=True, help="the program")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write into")
    options = parser.parse_args()
    (CHART / TABLES.name).write_bytes(TABLES.read_bytes())
    texts = {name: render(options.helm, words) for name, words in SETTINGS.items()}
    texts["nvct.yaml"] = NAMESPACE + texts["nvct.yaml"]
    for name, text in texts.items():
        path = options.out / name
        path.write_text(HEADER + text, encoding="utf-8")
        print(path)


def render(helm: str, words: list[str]) -> str:
    """Return what helm makes of the chart, without what only helm needs.

    Raises:
        SystemExit: helm fails.
    """
    command = [helm, "template", NAME, str(CHART), f"--namespace={NAME}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"render.py: helm failed: {done.stderr.strip()}")
    text = EMPTY.sub("", OF_HELM.sub("", SOURCE.sub("", done.stdout)))
    return re.sub(r"\n\n+---", "\n---", text)


if __name__ == "__main__":
    main()
