"""The modules of `workbench` whose docstrings have examples."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
# Their examples need the ranks of a cluster, or PyTorch, which takes a process of the unit tests seconds to import.
ON_RANKS = {
    f"workbench.{name}"
    for name in (
        "checkpoint.client",
        "checkpoint.kept",
        "cluster",
        "collective.api",
        "collective.broadcast",
        "collective.channel",
        "metrics.profile",
        "metrics.report",
        "mpi.native",
        "placement.place",
        "torch.averaging",
        "torch.context",
        "torch.estimators",
        "torch.feeding",
        "torch.fitting",
        "torch.initialization",
        "torch.pipelines.cutting",
        "torch.sharded",
        "torch.spatial.api",
        "torch.streams",
        "torch.tensors",
        "tune.study",
    )
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "workbench").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
}
