"""Show a picture in the theme of the page: ``NAME-light.png`` in a page stands for itself and for ``NAME-dark.png``."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

LIGHT, DARK = "-light.png", "-dark.png"


def pair(_: Sphinx, document: nodes.document) -> None:
    """Put the dark picture beside the light one, each for its theme."""
    for image in list(document.findall(nodes.image)):
        if image["uri"].endswith(LIGHT):
            dark = image.deepcopy()
            dark["uri"] = image["uri"].removesuffix(LIGHT) + DARK
            image["classes"].append("only-light")
            dark["classes"].append("only-dark")
            image.parent.insert(image.parent.index(image) + 1, dark)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add them before Sphinx collects the pictures."""
    app.connect("doctree-read", pair, priority=100)
    return {"parallel_read_safe": True}
