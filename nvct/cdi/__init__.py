# SPDX-License-Identifier: Apache-2.0
"""CDI, any vendor's: names, the description of a document, its versions."""
