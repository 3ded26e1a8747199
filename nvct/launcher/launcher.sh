#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The launcher of the runtimes where there is no compiler. No hooks: a shell has loaded an image's LD_PRELOAD by now.
exec "@PYTHON@" -I -S -c "@BOOT@from nvct.container.shim.main import main;main('@COLD@')" "${0##*/}" "$@"
