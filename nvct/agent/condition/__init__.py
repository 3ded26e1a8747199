# SPDX-License-Identifier: Apache-2.0
"""The agent's task `condition`: the condition `nvct.dev/GPUReady` of the Node, with Events."""
