#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Put nvct below DESTDIR as packages install it. Nothing is compiled but the launchers; byte code and
# the archive of the hot side are made on the machine they are for (`nvct launchers archive`).
#
#   DESTDIR=build/root PYTHON=/usr/bin/python3 BUILD_PYTHON=.venv/bin/python sh packaging/install.sh
#
# VENDOR holds Python modules that distributions lack, such as pynvml.py.
# PYTHON is the interpreter of the installed programs; BUILD_PYTHON, with click, runs nvct here.
set -eu
: "${DESTDIR:?DESTDIR names the folder to install into}"
PYTHON=${PYTHON:-/usr/bin/python3}
BUILD_PYTHON=${BUILD_PYTHON:-$PYTHON}
here=$(cd "$(dirname "$0")/.." && pwd)
dest=$(mkdir -p "$DESTDIR" && cd "$DESTDIR" && pwd)
lib=$dest/usr/lib/nvct
umask 022
# Modules are compiled once for all that runs here, and not beside the sources.
PYTHONPYCACHEPREFIX=$(mktemp -d)
trap 'rm -rf "$PYTHONPYCACHEPREFIX"' EXIT
export PYTHONPYCACHEPREFIX
unset PYTHONDONTWRITEBYTECODE

mkdir -p "$lib" "$dest/usr/bin"
rm -rf "$lib/nvct" "$lib/nvct_sim"
(cd "$here" && find nvct nvct_sim -name __pycache__ -prune -o -name '.*' -prune -o -type f -print | tar -c -T -) |
	tar -x -C "$lib" --no-same-owner
find "$lib/nvct" "$lib/nvct_sim" -type d -exec chmod 0755 {} + -o -exec chmod 0644 {} +

# What `nvct sim create` would need a compiler for.
PYTHONPATH=$here "$BUILD_PYTHON" -c 'import sys; from pathlib import Path; from nvct_sim.native import build; build.ship(Path(sys.argv[1]))' \
	"$lib/nvct_sim/native/built.zip"
chmod 0644 "$lib/nvct_sim/native/built.zip"

if [ -n "${VENDOR:-}" ]; then
	install -m 0644 "$VENDOR"/*.py "$lib/"
	for folder in "$VENDOR"/*.dist-info; do
		install -D -m 0644 "$folder/METADATA" "$lib/${folder##*/}/METADATA"
	done
fi

program() { # NAME MODULE FUNCTION
	sed -e "s|@PYTHON@|$PYTHON|" -e "s|@MODULE@|$2|" -e "s|@FUNCTION@|$3|" "$here/packaging/files/program" >"$dest/usr/bin/$1"
	chmod 0755 "$dest/usr/bin/$1"
}
program nvidia-container-cli nvct.cli.container.main nvidia_container_cli
program nvidia-mig-parted nvct.cli.mig.parted main
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$here/nvct/version.py")
sed -e "s|@VERSION@|$version|" "$here/packaging/files/nvidia-docker" >"$dest/usr/bin/nvidia-docker"
chmod 0755 "$dest/usr/bin/nvidia-docker"
sed -e "s|@PYTHON@|$PYTHON|" "$here/packaging/files/cold" >"$lib/cold"
install -m 0755 "$here/packaging/files/driver-packages" "$lib/driver-packages"
chmod 0755 "$lib/cold"

nvct() { PYTHONPATH=$here "$BUILD_PYTHON" -c "import sys; sys.argv[0] = 'nvct'; from nvct.cli.main import nvct; nvct()" "$@"; }
nvct launchers install --bin-dir "$dest/usr/bin" --form c --python "$PYTHON" --packages /usr/lib/nvct \
	--cold /usr/lib/nvct/cold --archive /usr/lib/nvct/hot.bin --no-archive --hot /usr/lib/nvct/nvct-hot
# The hot side as one static file, where tree.sh could build it; the launchers start it where it is.
if [ -e "$here/hot/nvct-hot" ]; then
	install -m 0755 "$here/hot/nvct-hot" "$lib/nvct-hot"
	install -m 0644 "$here/hot/nvct-hot.notices" "$lib/nvct-hot.notices"
fi
# No symbolic link: the incumbent's scripts, when that is purged, remove one of this name.
ln -f "$dest/usr/bin/nvidia-container-runtime-hook" "$dest/usr/bin/nvidia-container-toolkit"
# One program under several names; links where they come in the same package.
for name in nvidia-cdi-hook nvidia-ctk nvct; do
	ln -f "$dest/usr/bin/nvidia-container-runtime" "$dest/usr/bin/$name"
done
ln -f "$dest/usr/bin/nvidia-container-runtime.cdi" "$dest/usr/bin/nvidia-container-runtime.legacy"

install -d "$dest/etc/nvidia-container-runtime"
nvct config default >"$dest/etc/nvidia-container-runtime/config.toml"
chmod 0644 "$dest/etc/nvidia-container-runtime/config.toml"
install -D -m 0644 "$here/hooks/oci-nvidia-hook.json" "$dest/usr/share/nvct/hooks/oci-nvidia-hook.json"

for page in "$here"/docs/*.md; do
	install -D -m 0644 "$page" "$dest/usr/share/doc/nvct-base/docs/${page##*/}"
done
man=$dest/usr/share/man
for page in "$here"/packaging/man/*.[158]; do
	install -D -m 0644 "$page" "$man/man${page##*.}/${page##*/}"
done
PYTHONPATH=$here "$BUILD_PYTHON" "$here/packaging/man/commands.py" "$man/man1"

for name in nvct nvidia-ctk; do
	for shell in bash zsh fish; do
		case $shell in
		bash) file=$dest/usr/share/bash-completion/completions/$name ;;
		zsh) file=$dest/usr/share/zsh/${ZSH_FOLDER:-vendor-completions}/_$name ;;
		fish) file=$dest/usr/share/fish/vendor_completions.d/$name.fish ;;
		esac
		mkdir -p "${file%/*}"
		PYTHONPATH=$here "$BUILD_PYTHON" "$here/packaging/files/completion.py" "$name" "$shell" >"$file"
		chmod 0644 "$file"
	done
done

for unit in "$here"/packaging/systemd/*.service "$here"/packaging/systemd/*.path "$here"/packaging/systemd/*.timer "$here"/packaging/systemd/*.mount; do
	[ ! -e "$unit" ] || install -D -m 0644 "$unit" "$dest${UNIT_FOLDER:-/usr/lib/systemd/system}/${unit##*/}"
done
for rules in "$here"/packaging/udev/*.rules; do
	[ ! -e "$rules" ] || install -D -m 0644 "$rules" "$dest/usr/lib/udev/rules.d/${rules##*/}"
done
[ ! -e "$here/packaging/systemd/nvidia-cdi-refresh.env" ] ||
	install -D -m 0644 "$here/packaging/systemd/nvidia-cdi-refresh.env" "$dest/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
