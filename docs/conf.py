"""Settings of the documentation site, which `make docs` builds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from workbench import errors  # noqa: E402  (behind the path)
from workbench.config import __version__  # noqa: E402

project = "MPI Workbench"
author = "MPI Workbench developers"
project_copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "from_code",
    "manpage",
    "names",
    "notebooks",
    "pictures",
]
exclude_patterns = ["_ext", "_inventories", "_static", "_templates", "images"]
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
# The docstrings have the types, as text for readers.
autodoc_typehints = "none"
# The site is built without PyTorch; some modules of workbench.torch need PyTorch when they are imported.
autodoc_mock_imports = ["torch"]
numpydoc_show_class_members = False
# The list of a page names its methods without their class.
toc_object_entries_show_parents = "hide"
# Types lead to their pages. Some lead to sections and terms with numpydoc, which are in no inventory here; an array may
# be one of Dask.
numpydoc_xref_param_type = True
numpydoc_xref_aliases = {
    "array": "array",
    "array-like": "numpy.typing.ArrayLike",
    "bool": "bool",
    "iterable": "collections.abc.Iterable",
    "sequence": "collections.abc.Sequence",
} | {name: f"workbench.errors.{name}" for name, each in vars(errors).items() if isinstance(each, type)}

# A build downloads nothing: docs/_inventories has the names of other projects that docstrings have.
intersphinx_mapping = {
    name: (address, f"_inventories/{name}.inv")
    for name, address in {
        "dask": "https://docs.dask.org/en/stable",
        "distributed": "https://distributed.dask.org/en/stable",
        "heat": "https://heat.readthedocs.io/en/stable",
        "mpi4py": "https://mpi4py.readthedocs.io/en/stable",
        "numpy": "https://numpy.org/doc/stable",
        "optuna": "https://optuna.readthedocs.io/en/stable",
        "pandas": "https://pandas.pydata.org/docs",
        "python": "https://docs.python.org/3",
        "scipy": "https://docs.scipy.org/doc/scipy",
        "sklearn": "https://scikit-learn.org/stable",
        "torch": "https://docs.pytorch.org/docs/stable",
    }.items()
}

# -- pages

# A block without a language has commands or output.
highlight_language = "none"
# Quotes of commands in the text are copied, too.
smartquotes = False

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

# -- the manual page, which `make man` writes

man_pages = [("reference/subcommands", "workbench", "start and use MPI worlds that are Dask clusters", author, 1)]
# A page without a date is the same at each build.
today = " "

# doctest wants an empty line at the end of a block; readers do not.
EMPTY_LINE = re.compile(r"^(```pycon\n(?:(?!```).*\n)*?)\n```$", re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Read pages without the last empty lines of their blocks."""

    def read(_: Sphinx, __: str, source: list[str]) -> None:
        source[0] = EMPTY_LINE.sub(r"\1```", source[0])

    app.connect("source-read", read)
