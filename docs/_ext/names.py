"""What docstrings name, and which members pages show.

Names of the projects that have an inventory must be in that inventory. Other names without a page lead nowhere, for
example those of private modules. An import must find each of them that has a dot.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def exists(name: str) -> bool:
    """Return whether a module, or an attribute in one, has this name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:end]))
        except ImportError:
            continue
        except RuntimeError:
            return True  # mpi4py.MPI, where there is no MPI library
        try:
            for part in parts[end:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def resolve(app: Sphinx, _: BuildEnvironment, node: pending_xref, shown: nodes.Node) -> nodes.Node | None:
    """Return the text for a name without a page, None for a wrong name."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if node["reftype"] == "obj" and "." not in target:
        # Single backquotes are for parameters and attributes, too. Each other word of a type is one for numpydoc.
        return nodes.Text(shown.astext()) if isinstance(node.parent, nodes.classifier | nodes.term) else shown
    if target.partition(".")[0] in app.config.intersphinx_mapping:
        return None
    return shown if exists(target) or exists(f"workbench.{target}") else None


def skip(_: Sphinx, __: str, name: str, member: Any, *others: Any) -> bool | None:
    """Leave out what a class has of classes of other projects."""
    member = getattr(member, "fget", None) or member
    home = getattr(member, "__module__", None)
    return True if isinstance(home, str) and not home.startswith("workbench") else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Resolve names, and choose members."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", skip)
    # Such drawings are shown as they are written: the program that draws them would be downloaded.
    app.add_lexer("mermaid", TextLexer)
    return {"parallel_read_safe": True}
