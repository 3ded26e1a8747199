# SPDX-License-Identifier: Apache-2.0
"""Makes device nodes and their links, loads kernel modules."""
