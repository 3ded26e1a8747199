#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build nvct-hot, the hot side in one static file: build.sh [OUT]; and OUT.notices, the licences of
# what is inside. interpreter.sh says what it needs, and its variables count here too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
repository=${here%/packaging/static}
out=${1:-$repository/build/static/nvct-hot}
interpreter=$(sh "$here/interpreter.sh")
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$repository/nvct/version.py")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"
library=$(echo "$interpreter"/lib/python3.*)
"$interpreter/bin/python3" -I -S -X no_debug_ranges "$here/freeze.py" "$repository" "$library" \
	"$here/standins" "$work" "nvct $version
$(cat "$interpreter/about")"
cp "$here/main.c" "$here/malloc.c" "$repository/nvct/launch/launcher.c" "$work/"
cd "$work" # names without folders: the same bytes wherever it is built
"$interpreter/cc" -O2 -fno-builtin-malloc -s -Wall -Wextra -Werror -Wl,--gc-sections -Wl,--build-id=none \
	-Wl,--wrap=tzset -Wl,--wrap=localtime_r \
	-I"$interpreter/Include" -I"$interpreter" -o nvct-hot main.c malloc.c frozen.c "$interpreter/libpython.a" -lm
mv nvct-hot "$out"
{
	echo "nvct-hot contains an interpreter and a C library. Their licences:"
	echo
	cat "$interpreter/about" "$interpreter/LICENSE" /usr/share/doc/musl-dev/copyright
} >"$out.notices"
echo "$out"
