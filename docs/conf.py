"""Settings of the documentation site, which `make docs` builds."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from workbench.config import __version__  # noqa: E402  (behind the path)

project = "MPI Workbench"
author = "MPI Workbench developers"
project_copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "from_code",
    "names",
    "notebooks",
    "pictures",
]
exclude_patterns = ["_ext", "_static", "_templates", "images"]
templates_path = ["_templates"]

# -- Markdown and notebooks

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
# The tests execute the notebooks: a build starts no cluster.
nb_execution_mode = "off"
nb_merge_streams = True

# -- the reference of the API

default_role = "py:obj"
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
# The docstrings have the types, in words for readers.
autodoc_typehints = "none"
# The site is built without PyTorch; some modules of workbench.torch need PyTorch when they are imported.
autodoc_mock_imports = ["torch"]
numpydoc_show_class_members = False
# The list of a page names its methods without their class.
toc_object_entries_show_parents = "hide"
numpydoc_xref_param_type = False

# -- pages

# A block without a language has commands or output.
highlight_language = "none"

html_theme = "pydata_sphinx_theme"
html_title = "MPI Workbench"
html_static_path = ["_static"]
html_css_files = ["workbench.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
# The page of the API and the search lead to every name.
html_use_index = False
html_theme_options = {
    "logo": {"text": "MPI Workbench", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "changelog": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .go, .gt"
