"""Sphinx configuration for `make docs`. Neither the build nor the pages load anything from the network."""

project = "DreamGym"
author = "the DreamGym authors"
extensions = ["myst_parser"]
root_doc = "contents"
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "DreamGym"
html_copy_source = False
myst_heading_anchors = 4
nitpicky = True
