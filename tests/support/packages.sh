#!/bin/bash
# Install the Debian packages that setup needs, only those that are missing.
set -euo pipefail
need=()
have() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
command -v dpkg-query >/dev/null || exit 0 # not Debian: the README names what is needed
for p in gcc libc6-dev python3-venv runc busybox-static; do have "$p" || need+=("$p"); done
[ ${#need[@]} = 0 ] && exit 0
sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
