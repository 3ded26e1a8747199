#!/bin/bash
# Install the Debian packages that are missing of those that setup needs and of the arguments.
# A package that cannot be installed is a warning: without runc and a compiler much still works.
set -euo pipefail
command -v dpkg-query >/dev/null || exit 0 # not Debian: the README names what is needed
wanted=(gcc libc6-dev python3-venv runc crun busybox-static "$@")
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} = 0 ] && exit 0
give_up() {
  echo "warning: $1: ${missing[*]}" >&2
  exit 0
}
sudo=()
if [ "$(id -u)" != 0 ]; then
  sudo=(sudo)
  [ -t 0 ] || sudo=(sudo -n) # no terminal: nobody can type a password
  if ! command -v sudo >/dev/null || ! "${sudo[@]}" true 2>/dev/null; then
    give_up "these packages are missing, and only root can install them"
  fi
fi
apt() {
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq "$@"
}
echo "apt-get update" >&2
apt update || give_up "apt-get update fails, and these packages are missing"
available=() lacking=()
for package in "${missing[@]}"; do
  if apt-cache show "$package" >/dev/null 2>&1; then available+=("$package"); else lacking+=("$package"); fi
done
if [ ${#available[@]} != 0 ]; then
  echo "apt-get install ${available[*]}" >&2
  apt install -y --no-install-recommends "${available[@]}" >/dev/null ||
    give_up "apt-get install fails, and these packages are missing"
fi
# The tests want its programs, not the server that it starts.
if [[ " ${available[*]-} " == *" prometheus "* ]] && [ -d /run/systemd/system ]; then
  "${sudo[@]}" systemctl --quiet disable --now prometheus || true
fi
[ ${#lacking[@]} = 0 ] || echo "warning: this release lacks: ${lacking[*]}" >&2
