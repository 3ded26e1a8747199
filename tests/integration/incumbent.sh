# SPDX-License-Identifier: Apache-2.0
# Stand-ins for the packages that ours replace: their names, dependencies and paths (those of
# nvidia-container-toolkit 1.18's debian/*.install), their scripts' effects, and no more.
peer=/tmp/peer
stand_in() { # NAME DEPENDS PROGRAM...
	tree=$peer/$1
	mkdir -p "$tree/DEBIAN" "$tree/usr/bin" "$tree/usr/share/$1"
	echo "$1" >"$tree/usr/share/$1/name" # one without files of its own vanishes
	printf 'Package: %s\nVersion: 1.18.1-1\nArchitecture: all\nMaintainer: x <x@localhost>\nDescription: stand-in\n%s' \
		"$1" "${2:+Depends: $2
}" >"$tree/DEBIAN/control"
	shift 2
	for program; do
		printf '#!/bin/sh\necho the incumbent\n' >"$tree/usr/bin/$program"
		chmod 0755 "$tree/usr/bin/$program"
	done
}
base=$peer/nvidia-container-toolkit-base
env=/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
stand_in libnvidia-container1 ""
stand_in libnvidia-container-tools "libnvidia-container1 (>= 1.18.1-1)" nvidia-container-cli
stand_in nvidia-container-toolkit-base "" nvidia-container-runtime nvidia-ctk nvidia-cdi-hook
mkdir -p $base/lib/systemd/system $base/lib/udev/rules.d $base/etc/nvidia-container-toolkit
for file in systemd/system/nvidia-cdi-refresh.service systemd/system/nvidia-cdi-refresh.path \
	udev/rules.d/99-nvidia-cdi-refresh.rules; do
	echo "# the incumbent" >$base/lib/$file
done
echo "# NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml" >$base$env
echo $env >$base/DEBIAN/conffiles
stand_in nvidia-container-toolkit \
	"nvidia-container-toolkit-base (= 1.18.1-1), libnvidia-container-tools (>= 1.18.1-1)" nvidia-container-runtime-hook
scripts=$peer/nvidia-container-toolkit/DEBIAN
printf '#!/bin/sh\nln -sf /usr/bin/nvidia-container-runtime-hook /usr/bin/nvidia-container-toolkit\n' >$scripts/postinst
printf '#!/bin/sh\n[ "$1" != purge ] || [ ! -L /usr/bin/nvidia-container-toolkit ] || rm /usr/bin/nvidia-container-toolkit\n' >$scripts/postrm
chmod 0755 $scripts/postinst $scripts/postrm
stand_in nvidia-docker2 "nvidia-container-toolkit (>= 1.13.5-1)"
for tree in $peer/*; do dpkg-deb -b "$tree" "$tree.deb" >/dev/null; done
