#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make the image's base, a tar of a small Debian: base.sh FILE [MIRROR]. Needs mmdebstrap and network.
#
# bash and busybox, because scripts of GPU operators expect a shell with the usual programs; dpkg,
# because scanners read its status; libstdc++6, which gRPC is linked with; libssl3, for the API
# server. No Python: the bundle has its own, with this machine's libraries; so the release is that of
# this machine: Python's module for TLS needs an OpenSSL as new as its own, and OpenSSL and libstdc++
# need no newer C library than the bundle's.
set -eu
: "${1:?base.sh FILE names the tar to write}"
export SOURCE_DATE_EPOCH=0
hooks=/usr/share/mmdebstrap/hooks
release=bookworm ssl=libssl3
case $(. /etc/os-release && echo "${VERSION_CODENAME-}") in trixie | forky | sid) release=trixie ssl=libssl3t64 ;; esac
set -- "$1" $release ${2+"$2"}
file=$1
shift
mmdebstrap --quiet --variant=custom --format=tar \
	--hook-dir="$hooks/merged-usr" --hook-dir="$hooks/busybox" \
	--include=base-files,base-passwd,bash,busybox,debianutils,dpkg,libc-bin,$ssl,libstdc++6 \
	--aptopt='APT::Install-Recommends false' \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
	--dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/lib/*/gconv/*' \
	"${1}" "$file.part" ${2+"deb $2 $1 main"} >&2
mv "$file.part" "$file"
