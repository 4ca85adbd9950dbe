"""What docstrings name, and which members pages show.

A build downloads no inventory of another project, so names of other projects and of private modules lead nowhere. A
name with a dot is checked all the same: an import has to find it.
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


def resolve(_: Sphinx, __: BuildEnvironment, node: pending_xref, shown: nodes.Node) -> nodes.Node | None:
    """Return what stands for a name without a page of its own, None for one that is wrong."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    # Single backquotes are for parameters and attributes, too, which numpydoc asks for.
    known = node["reftype"] == "obj" and "." not in target
    return shown if known or exists(target) or exists(f"workbench.{target}") else None


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
