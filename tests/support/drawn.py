"""Pages of the dashboard as a browser shows them: visible texts, and figures by the titles of their cards."""

from __future__ import annotations

import asyncio

from bokeh.models import CustomAction
from panel import Column
from panel.pane import HTML

from workbench.lab.dashboard.store import DataStore


class Answering:
    """A source with one answer."""

    def __init__(self, update):
        self.update = update

    async def ask(self, since):
        return self.update


def known(update):
    """Return a store that has received this update."""
    store = DataStore(Answering(update))
    asyncio.run(store.refresh())
    return store


def visible(view):
    """Yield a Panel object and all objects in it that are not hidden."""
    if view.visible:
        yield view
        for part in getattr(view, "objects", ()):
            yield from visible(part)


def text(view):
    """Return the markup of all visible texts."""
    return "".join(part.object for part in visible(view) if isinstance(part, HTML))


def chart(view, title):
    """Return the figure of the card with this title."""
    cards = [part.objects for part in visible(view) if isinstance(part, Column) and len(part)]
    (card,) = (card for card in cards if f"<h2>{title}</h2>" in getattr(card[0], "object", ""))
    return card[-1].object


def data(figure):
    """Return the data of the first renderer of a figure."""
    return figure.renderers[0].data_source.data


def saved(figure):
    """Press the button that saves the numbers of a figure, and return what the browser saves."""
    models = figure.select_one(CustomAction).callback.args
    models["wanted"].data = {"name": [models["name"]], "at": [0]}
    return models["saved"].data["text"][0]
