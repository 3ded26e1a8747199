#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build nvct-hot, the hot side in one static file: build.sh [OUT]; and OUT.notices, the licences of
# what is inside. interpreter.sh says what it needs, and its variables count here too; where TARGET is
# another machine, EMULATOR runs the seed (main.c).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
repository=${here%/packaging/static}
out=${1:-$repository/build/static/nvct-hot}
emulator=''
if [ "${TARGET:-$(uname -m)}" != "$(uname -m)" ]; then
	emulator=${EMULATOR:-$(command -v "qemu-$TARGET-static" || command -v "qemu-$TARGET")} ||
		{ echo "build.sh: TARGET=$TARGET needs EMULATOR: install qemu-user-static" >&2; exit 1; }
fi
interpreter=$(sh "$here/interpreter.sh")
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$repository/nvct/version.py")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc=$interpreter/cc
if [ -n "$emulator" ]; then # the compiler may lie elsewhere than when the interpreter was built
	sed "s|^exec .* cc -target|exec $ZIG cc -target|" "$interpreter/cc" >"$work/cc"
	chmod +x "$work/cc"
	cc=$work/cc
fi
mkdir -p "$(dirname "$out")"
out=$(cd "$(dirname "$out")" && pwd)/${out##*/}
library=$(echo "$interpreter"/lib/python3.*)
digest=$("$interpreter/bin/python3" -I -S -X no_debug_ranges "$here/freeze.py" "$repository" "$library" \
	"$here/standins" "$work" "nvct $version
$(cat "$interpreter/about")")
cp "$here/main.c" "$here/malloc.c" "$here/malloc.h" "$repository/nvct/launcher/launcher.c" \
	"$repository/nvct/launcher/hook.h" "$work/"
cd "$work" # names without folders: the same bytes wherever it is built
# The image has fixed addresses (README.md): no PIE and no RELRO; the other flags are the launchers'.
"$cc" -O2 -fno-builtin-malloc -s -Wall -Wextra -Werror -fstack-protector-strong -U_FORTIFY_SOURCE \
	-D_FORTIFY_SOURCE=2 -Wl,-z,noexecstack -Wl,--gc-sections -Wl,--build-id=none \
	-Wl,-z,norelro -Wl,--wrap=tzset -Wl,--wrap=localtime_r -Wl,--wrap=clock_gettime -Wl,--wrap=__clock_gettime \
	-I"$interpreter/Include" -I"$interpreter" -o seed main.c malloc.c frozen.c "$interpreter/libpython.a" -lm
for image in one other; do # through pipes, so that the streams know no place in a file
	: | env -i $emulator ./seed 3>"$image" 2>&1 | cat >&2
done
"$interpreter/bin/python3" -I -S "$here/image.py" seed nvct-hot one other "$digest"
chmod 0755 nvct-hot
mv nvct-hot "$out"
{
	echo "nvct-hot contains an interpreter and a C library. Their licences:"
	echo
	cat "$interpreter/about" "$interpreter/LICENSE" /usr/share/doc/musl-dev/copyright
} >"$out.notices"
echo "$out"
