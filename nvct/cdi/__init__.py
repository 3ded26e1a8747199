# SPDX-License-Identifier: Apache-2.0
"""CDI of any vendor: names, the members of a document, versions."""
