#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The launcher where there is no compiler: hands over everything but create and run, for which
# Python decides. nvct/oci/argv.py says how the command line is read; launcher.c does more.
python() { exec @PYTHON@ -I -S -c "import sys;sys.path.insert(0,'@PACKAGES@');from $module import main;main('@COLD@')" "$name" "$@" 3<&-; }
name=${0##*/} module=nvct.shim.main
case $name in nvidia-cdi-hook)
	exec env -i ${NVIDIA_CTK_DEBUG+"NVIDIA_CTK_DEBUG=$NVIDIA_CTK_DEBUG"} @PYTHON@ -I -S -c \
		"import sys;sys.path.insert(0,'@PACKAGES@');from nvct.hook.launch import main;main('@COLD@')" "$name" "$@" ;;
esac
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
dir=${NVCT_RUN_DIR:-/run/nvct}
[ -n "${NVCT_RUN_DIR:-}" ] || [ "${XDG_RUNTIME_DIR:-}" = "" ] || [ -O / ] || dir=$XDG_RUNTIME_DIR/nvct
config=${NVIDIA_CTK_CONFIG_FILE_PATH:-${XDG_CONFIG_HOME:-/etc}/nvidia-container-runtime/config.toml}
conf=$dir/launcher.conf tab='	' fresh=''
if [ -n "$command" ] && [ -O "$dir" ] && [ -O "$conf" ] && [ ! -L "$conf" ]; then
	while IFS=$tab read -r key value signature <&3; do
		case $key in
		config)
			[ "$value" = "$config" ] || break
			if [ "$signature" = absent ]; then [ ! -e "$config" ] || break
			else [ -e "$config" ] && [ "$conf" -nt "$config" ] || break; fi
			fresh=1 ;;
		runtime)
			[ -n "$fresh" ] || break
			case $value in
			*/*) [ -f "$value" ] && [ -x "$value" ] && exec "$value" "$@" 3<&- ;;
			*)
				IFS=:
				for d in $PATH /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
					[ -n "$d" ] && [ -f "$d/$value" ] && [ -x "$d/$value" ] && exec "$d/$value" "$@" 3<&-
				done ;;
			esac ;;
		esac
	done 3<"$conf"
fi
python "$@"
