#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Put into a folder what packages are built from: tree.sh FOLDER. pynvml.py, which distributions
# lack, is copied from .venv (or VENV) into vendor/. Where `make static` was run before, nvct-hot is
# built from these sources into hot/. With SOURCE_DATE_EPOCH all files have that time: a checkout has many.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1/vendor"
(cd "$here" && tar -c --exclude=__pycache__ --exclude=.mypy_cache --exclude=docs/results nvct nvct_sim docs packaging hooks LICENSE README.md) | tar -x -C "$1"
module=$("${VENV:-$here/.venv}/bin/python" -c 'import pynvml; print(pynvml.__file__)')
cp "$module" "$1/vendor/pynvml.py"
for metadata in "${module%/*}"/nvidia_ml_py-*.dist-info/METADATA; do # tells scanners its version
	install -D -m 0644 "$metadata" "$1/vendor/${metadata#"${module%/*}"/}"
done
[ ! -e "$here/build/static/nvct-hot" ] || sh "$here/packaging/static/build.sh" "$1/hot/nvct-hot" >/dev/null
[ -z "${SOURCE_DATE_EPOCH:-}" ] || find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
