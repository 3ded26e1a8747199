# SPDX-License-Identifier: Apache-2.0
"""What is written into a container's root: links, ld.so.cache, CUDA compat."""
