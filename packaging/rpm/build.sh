#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the .rpm files into dist/: build.sh [FOLDER]. Needs rpmbuild, gcc and the Python packages that
# nvct needs. On a machine whose packages rpm does not know (Debian), dependencies are not checked.
# If `make bundle` has put one of this version into FOLDER, nvct-bundle is built as well.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$here/dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$here/nvct/version.py")
mkdir -p "$out"
# Times in the packages are those of the last change to the sources, so that two builds are the same.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || stat -c %Y "$here/nvct/version.py")}
export SOURCE_DATE_EPOCH
sh "$here/packaging/tree.sh" "$work/tree"
nodeps=
rpm -q rpm >/dev/null 2>&1 || nodeps=--nodeps
build() {
	rpmbuild -bb $nodeps --define "_topdir $work/rpm" --define "nvct_version $version" \
		--define "nvct_tree $work/tree" --define "_build_id_links none" \
		--define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
		--define "clamp_mtime_to_source_date_epoch 1" --define "build_mtime_policy clamp_to_source_date_epoch" \
		"$@" "$here/packaging/rpm/nvct.spec" >"$work/log" 2>&1 || {
		tail -n 40 "$work/log" >&2
		exit 1
	}
}
build
bundle=nvct-$version-$(uname -m)
if [ -e "$out/$bundle.tar.gz" ]; then
	tar -xzf "$out/$bundle.tar.gz" -C "$work"
	build --define "nvct_bundle $work/$bundle"
fi
find "$work/rpm/RPMS" -name '*.rpm' -exec cp {} "$out/" \;
ls "$out"/*.rpm
