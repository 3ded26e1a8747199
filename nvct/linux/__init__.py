# SPDX-License-Identifier: Apache-2.0
"""System calls, files, paths inside a container's root, ld.so.cache, ELF."""
