#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The launcher of the runtimes where there is no compiler: hands over everything but create and run,
# for which Python decides. It serves no hooks: a shell has loaded an image's LD_PRELOAD by now.
# nvct/oci/argv.py says how the command line is read; launcher.c does more: it also
# scans config.json, and it resets SIGPIPE and keeps the environment to the byte, as no shell can.
name=${0##*/} boot="@BOOT@"
python() { exec "@PYTHON@" -I -S -c "${boot}from nvct.container.shim.main import main;main('@COLD@')" "$name" "$@"; }
skip='' command=''
for arg do
	if [ -n "$skip" ]; then skip=''; continue; fi
	case $arg in
	--debug|-debug|--debug=*|--systemd-cgroup|-systemd-cgroup|--systemd-cgroup=*|--log=*|--log-format=*|--root=*|--criu=*|--rootless=*|--cgroup-manager=*|--log-level=*) ;;
	--log|--log-format|--root|--criu|--rootless|--cgroup-manager|--log-level|-log|-log-format|-root) skip=1 ;;
	-?*|create|run) python "$@" ;;
	*) command=$arg; break ;;
	esac
done
set -f
dir=${NVCT_RUN_DIR:-/run/nvct}
[ -n "${NVCT_RUN_DIR:-}" ] || [ -z "${XDG_RUNTIME_DIR:-}" ] || [ -O / ] || dir=$XDG_RUNTIME_DIR/nvct
toml=nvidia-container-runtime/config.toml
config=${NVIDIA_CTK_CONFIG_FILE_PATH:-${XDG_CONFIG_HOME:-/etc}/$toml}
[ -n "${NVIDIA_CTK_CONFIG_FILE_PATH:-}" ] || [ -e "$config" ] || config=/etc/$toml # Podman 5 names a folder that has none
conf=$dir/launcher.conf tab='	' head='' fresh='' whole='' runtimes=''
nl='
'
same() { [ "$1 $2 $3 ${4%?????????} $5" = "$6 $7 $8 $9 ${10}" ]; } # nanoseconds; seconds will do for a file that was not young
if [ -n "$command" ] && [ -O "$dir" ] && [ -O "$conf" ] && [ ! -L "$dir" ] && [ ! -L "$conf" ]; then
	there='' what=$(stat -Lc '%f %d %i %s %Y %u' -- "$dir" "$conf" "$config" 2>/dev/null)
	case $what in 41c0\ *"$nl"8180\ *) there=${what#*"$nl"} ;; esac # 0700 and 0600, no links
	case $there in *"$nl"*) now=${there#*"$nl"} ;; *) now='' ;; esac
	[ -z "$there" ] || while IFS=$tab read -r key value signature; do
		case $head$key in
		'nvct-launcher 1') head=1 ;;
		1config)
			[ "$value" = "$config" ] || break
			case $signature in
			absent) [ -z "$now" ] || break ;;
			*) [ -n "$now" ] && same $signature ${now#* } || break ;;
			esac
			fresh=1 ;;
		1runtime) runtimes=$runtimes$value$nl ;;
		1end) whole=$head$fresh; break ;;
		1*) ;;
		*) break ;;
		esac
	done <"$conf"
fi
if [ "$whole" = 11 ]; then
	IFS=$nl
	for value in $runtimes; do
		case $value in
		*/*) [ -f "$value" ] && [ -x "$value" ] && exec "$value" "$@" ;;
		*)
			IFS=:
			for d in ${PATH:-} /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
				[ -n "$d" ] && [ -f "$d/$value" ] && [ -x "$d/$value" ] && exec "$d/$value" "$@"
			done ;;
		esac
	done
fi
python "$@"
