# SPDX-License-Identifier: Apache-2.0
"""NRI: the plugin that container engines ask about each container of a pod, `nvct-nri`."""
