#!/bin/sh
# Record what a machine with a GPU answers: sh tests/gpu/run.sh KIT [FILE]
#
# KIT is the folder that `make gpu-kit` made; nothing else is needed but Python 3.11 to 3.13, no pip
# and no network. FILE is the record, gpu-record.tar.gz by default. SIM=1: on a simulated node.
# The card and the machine stay as they are; the record is written as it grows, without UUIDs.
set -eu
[ $# -ge 1 ] && [ -f "$1/wheels.tar.xz" ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
repository=$(cd "$(dirname "$0")/../.." && pwd)
kit=$(cd "$1" && pwd)
file=${2:-gpu-record.tar.gz}
case $file in /*) ;; *) file=$PWD/$file ;; esac

tag='import sys; 11 <= sys.version_info.minor <= 13 and print("cp3%d" % sys.version_info.minor)'
for python in python3 python3.12 python3.13 python3.11 none; do
  version=$("$python" -c "$tag" 2>/dev/null) && [ -n "$version" ] && break
done
[ "$python" != none ] || { echo "no Python 3.11, 3.12 or 3.13 here" >&2; exit 2; }

work=$(mktemp -d) && chmod 755 "$work" # user namespaces enter it
trap 'rm -rf "$work"' EXIT
trap 'exit 143' HUP INT TERM
for archive in wheels programs; do
  "$python" -c 'import shutil, sys; shutil.unpack_archive(*sys.argv[1:])' \
    "$kit/$archive.tar.xz" "$work/$archive" || tar -xJf "$kit/$archive.tar.xz" -C "$work/$archive"
done
export PYTHONPYCACHEPREFIX="$work/pyc" NVCT_GPU_CARRY="$work/programs" # nothing is left behind
export PYTHONPATH="$work/wheels/any/site-packages:$work/wheels/$version/site-packages:$repository"
cd "$repository"
"$python" -m tests.gpu record "$file" ${SIM:+--sim}
