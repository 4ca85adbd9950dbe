"""Deep learning on the ranks: PyTorch trains on the communicator of a call or a cell.

The names below are loaded when they are first used, and PyTorch (``pip install 'mpi-workbench[torch]'``) with the first
of them that needs PyTorch: ``import workbench.torch`` imports neither PyTorch nor MPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench import lazy

if TYPE_CHECKING:
    from workbench.torch.averaging import average as average
    from workbench.torch.context import distributed as distributed
    from workbench.torch.estimators import NeuralNetClassifier as NeuralNetClassifier
    from workbench.torch.estimators import NeuralNetRegressor as NeuralNetRegressor
    from workbench.torch.feeding import batches as batches
    from workbench.torch.fitting import fit as fit
    from workbench.torch.fitting import predict as predict
    from workbench.torch.initialization import materialize as materialize
    from workbench.torch.pipelines.cutting import pipeline as pipeline
    from workbench.torch.sharded import load_sharded as load_sharded
    from workbench.torch.sharded import save_sharded as save_sharded
    from workbench.torch.spatial.api import strips as strips
    from workbench.torch.streams import stream as stream
    from workbench.torch.tensors import tensor as tensor

_HOMES = {
    "workbench.torch.averaging": "average",
    "workbench.torch.context": "distributed",
    "workbench.torch.estimators": "NeuralNetClassifier NeuralNetRegressor",
    "workbench.torch.feeding": "batches",
    "workbench.torch.fitting": "fit predict",
    "workbench.torch.initialization": "materialize",
    "workbench.torch.pipelines.cutting": "pipeline",
    "workbench.torch.sharded": "load_sharded save_sharded",
    "workbench.torch.spatial.api": "strips",
    "workbench.torch.streams": "stream",
    "workbench.torch.tensors": "tensor",
}
__getattr__, __dir__, __all__ = lazy.names(__name__, _HOMES)

PRELOAD = (
    *_HOMES,
    "workbench.torch.epochs", "workbench.torch.process_group", "torch.distributed.fsdp", "torch.distributed.tensor",
    "torch.nn.parallel", "torch._dynamo", "dask.array",
    "distributed.protocol.numpy",
)  # fmt: skip
"""Modules that the first training imports on each rank."""
