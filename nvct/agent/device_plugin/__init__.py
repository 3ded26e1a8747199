# SPDX-License-Identifier: Apache-2.0
"""The agent's task `device-plugin` (`nvidia-device-plugin`)."""
