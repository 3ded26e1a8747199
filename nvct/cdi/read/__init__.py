# SPDX-License-Identifier: Apache-2.0
"""CDI folders and files -> checked documents."""
