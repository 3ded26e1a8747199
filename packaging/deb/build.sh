#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the .deb files into dist/: build.sh [FOLDER]. Needs debhelper, dh-python, gcc and the Python
# packages that nvct needs (packaging/deb/debian/control lists them), and nvidia-ml-py in .venv: its
# one module goes into the package, as Debian has none.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$here/dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$here/nvct/version.py")
tree=$work/nvct-$version
mkdir -p "$out"
# Times in the packages are those of the last change to the sources, so that two builds are the same.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || stat -c %Y "$here/nvct/version.py")}
export SOURCE_DATE_EPOCH
sh "$here/packaging/tree.sh" "$tree"
mv "$tree/packaging/deb/debian" "$tree/debian"
date=$(date -u -R -d "@$SOURCE_DATE_EPOCH")
printf 'nvct (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- The nvct authors <nvct@localhost>  %s\n' \
	"$version" "$date" >"$tree/debian/changelog"
cd "$tree"
PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg-buildpackage -us -uc -b ${NVCT_DEB_NODEPS:+-d} >"$work/log" 2>&1 || {
	tail -n 40 "$work/log" >&2
	exit 1
}
cp "$work"/*.deb "$out/"
ls "$out"/*.deb
