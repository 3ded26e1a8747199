# SPDX-License-Identifier: Apache-2.0
"""Its task and program `config-manager`: the config file that the Node's label names."""
