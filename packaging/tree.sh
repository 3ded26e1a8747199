#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Put into a folder what packages are built from: tree.sh FOLDER. pynvml.py, which distributions
# lack, is copied from .venv (or VENV) into vendor/. Where `make static` was run before, nvct-hot is
# built from these sources into hot/.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1/vendor"
(cd "$here" && tar -c --exclude=__pycache__ --exclude=.mypy_cache --exclude=docs/results nvct nvct_sim docs packaging hooks LICENSE README.md) | tar -x -C "$1"
cp "$("${VENV:-$here/.venv}/bin/python" -c 'import pynvml; print(pynvml.__file__)')" "$1/vendor/pynvml.py"
[ ! -e "$here/build/static/nvct-hot" ] || sh "$here/packaging/static/build.sh" "$1/hot/nvct-hot" >/dev/null
