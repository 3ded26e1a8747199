# SPDX-License-Identifier: Apache-2.0
"""The agent's task and program `config-manager`: the config file that the Node's label names."""
