"""Deep learning on the ranks: PyTorch trains on the communicator of a call or a cell.

The names below are loaded when they are first used, and PyTorch (``pip install 'mpi-workbench[torch]'``) with the first
of them that needs PyTorch: ``import workbench.torch`` imports neither PyTorch nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.torch.averaging import average
    from workbench.torch.context import distributed
    from workbench.torch.estimators import NeuralNetClassifier, NeuralNetRegressor
    from workbench.torch.feeding import batches
    from workbench.torch.fitting import fit, predict
    from workbench.torch.initialization import materialize
    from workbench.torch.pipelines.cutting import pipeline
    from workbench.torch.sharded import load_sharded, save_sharded
    from workbench.torch.spatial.api import strips
    from workbench.torch.streams import stream
    from workbench.torch.tensors import tensor

_HOME = {
    "NeuralNetClassifier": "workbench.torch.estimators",
    "NeuralNetRegressor": "workbench.torch.estimators",
    "average": "workbench.torch.averaging",
    "batches": "workbench.torch.feeding",
    "distributed": "workbench.torch.context",
    "fit": "workbench.torch.fitting",
    "load_sharded": "workbench.torch.sharded",
    "materialize": "workbench.torch.initialization",
    "pipeline": "workbench.torch.pipelines.cutting",
    "predict": "workbench.torch.fitting",
    "save_sharded": "workbench.torch.sharded",
    "stream": "workbench.torch.streams",
    "strips": "workbench.torch.spatial.api",
    "tensor": "workbench.torch.tensors",
}

PRELOAD = (
    *dict.fromkeys(_HOME.values()),
    "workbench.torch.epochs", "workbench.torch.process_group", "torch.distributed.fsdp", "torch.distributed.tensor",
    "torch.nn.parallel", "torch._dynamo", "dask.array",
    "distributed.protocol.numpy",
)  # fmt: skip
"""Modules that the first training imports on each rank."""

__all__ = [
    "NeuralNetClassifier",
    "NeuralNetRegressor",
    "average",
    "batches",
    "distributed",
    "fit",
    "load_sharded",
    "materialize",
    "pipeline",
    "predict",
    "save_sharded",
    "stream",
    "strips",
    "tensor",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workbench.torch' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
