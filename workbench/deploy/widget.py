"""The widget of a cluster in Jupyter: a table that is updated."""

from __future__ import annotations

from typing import Any

from tornado.ioloop import PeriodicCallback

from workbench.deploy.display import html


def widget(cluster: Any) -> Any:
    """Return the ipywidget that follows the cluster, or None without ipywidgets."""
    try:
        from ipywidgets import HTML
    except ImportError:
        return None
    follower = cluster.periodic_callbacks.get("cluster-repr")
    if follower is None:
        follower = _Follower(cluster, HTML(cluster._repr_html_()))
        if cluster.status.name == "running":
            cluster.periodic_callbacks["cluster-repr"] = follower
            cluster.loop.add_callback(follower.start)
    return follower.shown


class _Follower(PeriodicCallback):
    """Updates a widget until the cluster is closed, and then shows that state."""

    def __init__(self, cluster: Any, shown: Any) -> None:
        super().__init__(self._update, 1000)
        self.cluster, self.shown = cluster, shown

    async def _update(self) -> None:
        try:
            await self.cluster.refresh()
            table = self.cluster._repr_html_()
        except OSError:
            table = html(self.cluster.record, [], "gone")
        if self.is_running() and table != self.shown.value:
            self.shown.value = table

    def stop(self) -> None:
        super().stop()
        self.shown.value = html(self.cluster.record, [], "closed")
