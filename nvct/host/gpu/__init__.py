# SPDX-License-Identifier: Apache-2.0
"""GPUs, MIG instances, IMEX channels, sockets, and their device nodes."""
