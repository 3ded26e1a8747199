#!/bin/bash
# Make the virtual environment with this project and its tools in it: venv.sh FOLDER PYTHON
# An environment that an earlier attempt left without pip is made again.
set -euo pipefail
venv=$1 python=${2:-}
if [ -z "$python" ]; then
  echo "error: no Python 3.10 or later here; install python3, or name one: make PYTHON=/path setup" >&2
  exit 1
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  echo "making $venv with $python" >&2
  rm -rf "$venv"
  # Debian keeps the pip of venv in the package python3-venv, which only root can install.
  if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv "$venv"
  else
    "$python" -m venv --without-pip "$venv"
    "$venv/bin/python" "$(dirname "$0")/fetch_pip.py"
  fi
fi
echo "pip install into $venv (a minute or two the first time)" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
