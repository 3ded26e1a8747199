#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the interpreter that nvct-hot has inside, once: CPython of Debian's source package, static,
# with musl. Prints the folder it lies in. Needs apt, dpkg-dev, gcc, make and musl-tools; 3 minutes of CPU.
#
#   PYTHON_SUITE    whose source package; the mirror has its newest version only
#   PYTHON_SOURCE   a folder that has the .dsc and its files: nothing is fetched
#   PYTHON_FRESH=1  look for a newer version, of a security update for instance
#   NVCT_STATIC_CACHE  where sources and interpreters are kept
#   ZIG             "python3 -m ziglang" or the like: the compiler where TARGET is another machine
#   TARGET          x86_64 or aarch64; default this machine
set -eu
suite=${PYTHON_SUITE:-trixie} package=python3.13
cache=${NVCT_STATIC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nvct-static}
source=${PYTHON_SOURCE:-$cache/source}

fail() { echo "interpreter.sh: $1" >&2; exit 1; }
for tool in musl-gcc dpkg-source make; do
	command -v "$tool" >/dev/null || fail "$tool is missing: install musl-tools, dpkg-dev and make"
done
machine=$(uname -m)
target=${TARGET:-$machine}
[ "$target" = "$machine" ] || [ -n "${ZIG:-}" ] || fail "TARGET=$target needs ZIG: pip install ziglang"
native=''
[ "$target" = "$machine" ] || native=$(TARGET=$machine sh "$0") # its Python freezes the other's modules
mkdir -p "$cache"
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

mirrors() { # of this machine, as apt knows them: $1 is debian or debian-security
	apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' | sed -n "\\|/$1/*\$|{p;q}"
}

fetch() { # apt checks the archive's signature and each file's hash
	mirror=$(mirrors debian) security=$(mirrors debian-security)
	mirror=${mirror:-http://deb.debian.org/debian} security=${security:-http://deb.debian.org/debian-security}
	mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial" "$work/apt/etc/apt.conf.d" \
		"$work/apt/etc/preferences.d" "$work/files"
	{
		echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
		echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $security $suite-security main"
	} >"$work/apt/etc/sources.list"
	cat >"$work/apt.conf" <<-EOF
		Dir::Etc "$work/apt/etc";
		Dir::Etc::sourceparts "-";
		Dir::State "$work/apt";
		Dir::Cache "$work/apt";
		Acquire::Languages "none";
		APT::Sandbox::User "";
	EOF
	(
		cd "$work/files"
		export APT_CONFIG="$work/apt.conf"
		apt-get update -qq && apt-get source -qq --download-only "$package"
	) >&2 || fail "the source of $package of $suite cannot be fetched from $mirror"
	rm -rf "$cache/source"
	mv "$work/files" "$cache/source"
}
exec 9>"$cache/lock"
if [ -z "${PYTHON_SOURCE:-}" ] && { [ -n "${PYTHON_FRESH:-}" ] || [ ! -e "$source" ]; }; then
	flock 9
	[ -z "${PYTHON_FRESH:-}" ] && [ -e "$source" ] || fetch
	flock -u 9
fi
set -- "$source"/"$package"_*.dsc
[ $# = 1 ] && [ -e "$1" ] || fail "there is not one $package source package in $source"
dsc=$1
version=${dsc##*/"${package}_"} version=${version%.dsc}

# What decides about the bytes: the recipe, the sources, the compiler, the C library.
if [ -z "$native" ]; then compiler=$(gcc --version; dpkg-query -W musl-dev binutils); else compiler=zig-$($ZIG version); fi
key=$({ sed -n '/^# The recipe/,$p' "$0"; cat "$dsc"; echo "$compiler"; } | sha256sum | cut -c1-12)
made=$cache/$package-$version-$target-$key
ready() { [ ! -e "$made/done" ] || { echo "$made"; exit 0; }; }
ready
flock 9
ready # another process has made it meanwhile

# The recipe: the folder's name changes with what follows.
echo "interpreter.sh: building Python $version for $target with musl" >&2
dpkg-source -x "$dsc" "$work/tree" >"$work/log" 2>&1 || fail "$dsc cannot be unpacked: $(tail -1 "$work/log")"
cd "$work/tree"
SOURCE_DATE_EPOCH=$(dpkg-parsechangelog -S Timestamp)
export SOURCE_DATE_EPOCH
if [ -z "$native" ]; then
	libc="musl $(dpkg-query -W -f '${Version}' musl-dev)" ar=ar cc=musl-gcc
else
	libc="musl of zig $($ZIG version)" ar="$ZIG ar"
	cc="$ZIG cc -target $target-linux-musl -fno-sanitize=undefined -Wno-date-time"
fi
cat >"$work/cc" <<EOF
#!/bin/sh
case "\$*" in *--print-multiarch*) exit 0 ;; esac # gcc's own answer names glibc
exec $cc -fno-pie -no-pie -static "\$@"
EOF
chmod +x "$work/cc"
cat >Modules/Setup.local <<'EOF'
*static*
_blake2 _blake2/blake2module.c _blake2/blake2b_impl.c _blake2/blake2s_impl.c
_json _json.c
_struct _struct.c
binascii binascii.c
fcntl fcntlmodule.c
EOF
log() { "$@" >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; fail "$1 failed"; }; }
# mimalloc, which nobody would use, reads /proc at every start.
set -- --prefix=/nonexistent --disable-shared --disable-test-modules --disable-ipv6 --without-ensurepip \
	--without-doc-strings --without-readline --without-mimalloc --with-builtin-hashlib-hashes=blake2
[ -z "$native" ] || set -- "$@" --host="$target-linux-musl" --build="$machine-linux-gnu" \
	--with-build-python="$native/bin/python3" ac_cv_file__dev_ptmx=no ac_cv_file__dev_ptc=no
# No pkg-config: what it finds are the host's libraries, built for glibc.
log env PKG_CONFIG=false ./configure "$@" CC="$work/cc" AR="$ar" CFLAGS="-g0 -fstack-protector-strong -ffile-prefix-map=$work/tree=." \
	ac_cv_lib_z_gzread=no ac_cv_header_zlib_h=no
log make -j"$(nproc)" "lib$package.a" $([ -n "$native" ] || echo python)
rm -rf "$made" Lib/test Lib/idlelib Lib/tkinter Lib/ensurepip
mkdir -p "$work/made/bin" "$work/made/lib/$package/lib-dynload"
cp -r Lib/. "$work/made/lib/$package/"
cp -r Include LICENSE pyconfig.h "$work/cc" "$work/made/"
cp "lib$package.a" "$work/made/libpython.a"
$ar d "$work/made/libpython.a" config.o frozen.o getpath.o # main.c and frozen.c have their own
[ -n "$native" ] || cp python "$work/made/bin/python3"
[ -z "$native" ] || ln -s "$native/bin/python3" "$work/made/bin/python3"
printf 'Python %s, source package of Debian\n%s\n' "$version" "$libc" >"$work/made/about"
: >"$work/made/done"
mv "$work/made" "$made"
echo "$made"
