# SPDX-License-Identifier: Apache-2.0
# sh -c "$(cat software.sh)" sh KIND LIBDIR MACHINE PROBE: print "program TAB file of the driver".
# KIND: small (nothing but PROBE), musl, or tools (compilers and what else is there).
kind=$1 L=$2 machine=$3 probe=$4
export LC_ALL=C
[ -e /usr/lib64/libc.so.6 ] && ! [ -e $L/libc.so.6 ] && L=/usr/lib64

row() { printf '%s\t%s\n' "$1" "${2:-none}"; }
file() { if [ -e "$1" ]; then basename "$(readlink -f "$1")"; fi; }
of_driver() { grep -E 'nvidia|libcuda|nvcuvid' | sort -u | tr '\n' ' '; }

small() {
	for name in libcuda.so.1 libcuda.so libnvidia-ml.so.1 libnvidia-encode.so.1 \
		libnvidia-ptxjitcompiler.so.1 libvdpau_nvidia.so.1; do
		row "dlopen $name" "$(file "$($probe $name 2>/dev/null)")"
	done
	for name in libcuda.so.1 libnvidia-ml.so gbm/nvidia-drm_gbm.so vdpau/libvdpau_nvidia.so.1; do
		row "dlopen by path $name" "$(file "$($probe $L/$name 2>/dev/null)")"
	done
	for loader in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 /nix/store/*/lib/ld-linux*; do
		[ -e $loader ] || continue
		row 'ld.so --inhibit-cache' "$(file "$($loader --inhibit-cache $probe libcuda.so.1 2>/dev/null)")"
	done
}

musl() {
	found=$(/lib/ld-musl-$machine.so.1 --list /opt/needs-libcuda.so 2>/dev/null |
		sed -n 's/.*libcuda.so.1 => \([^ ]*\).*/\1/p')
	row 'ld-musl --list' "$(file "$found")"
}

# What a program needs of a name, as its own loader finds it.
needs() { LD_TRACE_LOADED_OBJECTS=1 $1 2>/dev/null | sed -n "s/.*$2[^ ]* => \([^ ]*\) .*/\1/p"; }

linked() { # ROW NAME ARGUMENT...
	name=$1 library=$2
	shift 2
	rm -f linked
	gcc -Wl,--no-as-needed t.c "$@" -o linked 2>/dev/null
	row "$name" "$(file "$(needs ./linked $library)")"
}

link() {
	linked 'gcc -lcuda' libcuda -lcuda
	linked 'gcc PATH/libcuda.so' libcuda $L/libcuda.so
	for name in nvidia-ml nvidia-encode nvcuvid; do
		linked "gcc -l$name" lib$name -l$name
	done
	mkdir own
	ln -s $L/libcuda.so.1 own/libcuda.so
	linked 'ln -s, gcc -L -lcuda' libcuda -Lown -lcuda
	cp $L/libcuda.so.*.* copied 2>/dev/null
	row 'cp of the versioned name' "$([ -s copied ] && echo copied)"
	for loader in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do
		[ -e $loader ] || continue
		found=$($loader --inhibit-cache --list ./linked 2>/dev/null | sed -n 's/.*libcuda[^ ]* => \([^ ]*\) .*/\1/p')
		row 'ld.so --inhibit-cache' "$(file "$found")"
	done
}

with_cmake() {
	command -v cmake >/dev/null || return 0
	mkdir c
	printf '%s\n' 'cmake_minimum_required(VERSION 3.5)' 'project(x C)' 'find_library(CUDA cuda)' \
		'find_library(ML nvidia-ml)' 'message("CUDA=${CUDA}")' 'message("ML=${ML}")' >c/CMakeLists.txt
	(cd c && cmake .) >cmake.log 2>&1
	for name in CUDA ML; do
		row "cmake find_library $name" "$(file "$(sed -n "s/^$name=//p" cmake.log)")"
	done
}

# What Triton does: link with the first folder of ldconfig's libcuda.so.1 that has the file.
by_ldconfig() {
	for folder in $(/sbin/ldconfig -p | sed -n 's|.*libcuda\.so\.1 .*=> \(.*\)/libcuda.so.1$|\1|p'); do
		[ -e $folder/libcuda.so.1 ] || continue
		linked "$1" libcuda -L$folder -l:libcuda.so.1
		return
	done
	row "$1" none
}

loaded() { # what Python maps after loading a library
	$python -c "import ctypes; ctypes.CDLL('$1')
print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libcuda' in line})" 2>/dev/null
}

with_python() {
	row 'python CDLL' "$(file "$(loaded libcuda.so.1)")"
	row 'python CDLL of a path' "$(file "$(loaded $L/libcuda.so)")"
	row 'python find_library' "$($python -c 'import ctypes.util as u
print(u.find_library("cuda"), u.find_library("nvidia-ml"))' 2>/dev/null)"
	[ -d /packages ] || return 0
	export PYTHONPATH=/packages
	row numba "$(LD_DEBUG=files $python -c 'from numba.cuda.cudadrv import driver
driver.find_driver()' 2>&1 | sed -n 's/.*file=\([^ ]*libcuda[^ ]*\) .*generating link map.*/\1/p' | of_driver)"
	row cuda.pathfinder "$(file "$($python -c 'from cuda.pathfinder import load_nvidia_dynamic_lib as f
print(f("cuda").abs_path)' 2>/dev/null)")"
}

# What a program's loaders open with success.
opens() {
	command -v $1 >/dev/null || return 0
	LD_DEBUG=files LD_DEBUG_OUTPUT=$PWD/ld-$1 "$@" >/dev/null 2>&1 </dev/null
	row $1 "$(cat ld-$1.* 2>/dev/null | sed -n 's/.*file=\([^ ]*\) .*generating link map.*/\1/p' |
		while read -r path; do basename $path; done | of_driver)"
}

tools() {
	mkdir /tmp/w
	cd /tmp/w || exit
	echo 'int main(void) { return 0; }' >t.c
	link
	with_cmake
	by_ldconfig 'ldconfig -p'
	python=$(ls /usr/bin/python3.* 2>/dev/null | grep -E '/python3\.[0-9]+$' | head -n 1)
	[ -z "$python" ] || with_python
	opens vulkaninfo
	opens eglinfo
	opens clinfo
	opens ffmpeg -f lavfi -i nullsrc -frames:v 1 -c:v h264_nvenc -f null -
	/sbin/ldconfig 2>/dev/null
	by_ldconfig 'after ldconfig'
	[ -z "$python" ] || row 'python CDLL after ldconfig' "$(file "$(loaded libcuda.so.1)")"
}

row layout "$(grep -qE ' (/usr/local/nvidia|/.nvct/driver) ' /proc/self/mountinfo && echo farm || echo classic)"
row 'file names' "$(cd $L 2>/dev/null && ls -d lib*.so* gbm/* vdpau/* 2>/dev/null | of_driver)"
$kind
