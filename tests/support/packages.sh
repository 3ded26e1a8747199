#!/bin/bash
# Install the Debian packages that setup needs, only those that are missing. Who may not install
# any gets a warning and goes on: much works without runc and a compiler. Arguments are further ones.
set -euo pipefail
need=()
have() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
command -v dpkg-query >/dev/null || exit 0 # not Debian: the README names what is needed
for p in gcc libc6-dev python3-venv runc crun busybox-static "$@"; do have "$p" || need+=("$p"); done
[ ${#need[@]} = 0 ] && exit 0
sudo=()
if [ "$(id -u)" != 0 ]; then
  sudo=(sudo)
  [ -t 0 ] || sudo=(sudo -n) # nobody could answer
  if ! command -v sudo >/dev/null || ! "${sudo[@]}" true 2>/dev/null; then
    echo "warning: these packages are missing, and only root can install them: ${need[*]}" >&2
    exit 0
  fi
fi
as_root() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "$@"; }
as_root apt-get update -qq
as_root apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
