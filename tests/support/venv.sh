#!/bin/bash
# Make the virtual environment with this project and its tools in it: venv.sh FOLDER [PYTHON]
# An environment that an earlier attempt left without pip is made again.
set -euo pipefail
venv=$1 python=${2:-}
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
# The system's own Python where it is new enough: the hot side must run on a root-owned interpreter.
for found in /usr/bin/python3 python3; do
  if [ -z "$python" ] && is_new_enough "$found"; then python=$found; fi
done
if ! is_new_enough "${python:-python3}"; then
  echo "error: no Python 3.10 or later${python:+ is $python}; install python3, or name one: make PYTHON=/path setup" >&2
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
