"""Write the manual page of the command ``workbench``, from the page of the subcommands."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


class ForTerminal(SphinxPostTransform):
    """Make definition lists of tables, which have two columns, and leave out the targets of links between pages."""

    default_priority = 400
    builders = ("man",)

    def run(self, **_: object) -> None:
        """Replace the tables and the links in the document."""
        for table in list(self.document.findall(nodes.table)):
            items = nodes.definition_list()
            for row in next(table.findall(nodes.tbody)).findall(nodes.row):
                name, meaning = row.children
                items += nodes.definition_list_item(
                    "",
                    nodes.term("", "", *_inline(name)),
                    nodes.definition("", *meaning.children),
                )
            table.replace_self(items)
        for link in list(self.document.findall(nodes.reference)):
            if link.get("internal"):
                link.replace_self(link.children)


def _inline(cell: nodes.Node) -> list[nodes.Node]:
    """Return the text of a cell without the paragraph around the text."""
    return [each for paragraph in cell.children for each in paragraph.children]


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the transform."""
    app.add_post_transform(ForTerminal)
    return {"parallel_read_safe": True}
