"""The layers of a module: the parts between which one tensor is passed, so that a pipeline can be cut there."""

from __future__ import annotations

import copy
import functools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from workbench.errors import InvalidRequest
from workbench.torch.initialization import draw, without_memory

# `_Root` has the module of the user under this name.
_PREFIX = "module."
# Names of tensors that `forward` makes, which no module of a user has.
_MADE = "_made_by_forward"


@dataclass(frozen=True)
class Layer:
    """Consecutive operations of a module that take one tensor and return one."""

    name: str
    """Names of the submodules, from the first to the last one."""
    nodes: tuple[fx.Node, ...]
    """The operations."""
    output: fx.Node
    """The operation whose result is passed to the next layer."""


class Layers:
    """The layers of a module, in the order in which they run.

    Parameters
    ----------
    module
        A module that takes one tensor.
    share
        A submodule with more than this share of the weights is opened, if torch.fx can trace the submodule.

    Raises
    ------
    InvalidRequest
        If the ``forward`` of the module cannot be traced, or makes no tensor of its input.

    Notes
    -----
    The layers are found by ``torch.fx`` (Reed et al., 2022). `nn.Sequential` is opened, and so are the module and its
    large submodules, also an `nn.TransformerEncoder` without masks; other submodules run as they are. Names of weights
    remain those of the module.
    """

    def __init__(self, module: nn.Module, share: float = 0.5) -> None:
        self._module = module
        graph, made = _traced(module, share)
        self._root = copy.copy(module)
        vars(self._root).update(made)
        self._input = next(node for node in graph.nodes if node.op == "placeholder")
        self._all = tuple(_layers(graph, self._input))

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, index: int) -> Layer:
        return self._all[index]

    def part(self, first: int, end: int, *, cloned: bool = False) -> nn.Module:
        """Return a module of the layers from `first` up to `end`, which shares the submodules and their names.

        With `cloned` the module does not change its input, and the first layer gets a copy.
        """
        graph = fx.Graph()
        source = self._all[first - 1].output if first else self._input
        rows = graph.placeholder("rows")
        copies = {source: graph.call_method("clone", (rows,)) if cloned else rows}
        for layer in self._all[first:end]:
            for node in layer.nodes:
                copied = copies[node] = graph.node_copy(node, copies.__getitem__)
                if node.op in {"call_module", "get_attr"}:
                    copied.target = str(node.target).removeprefix(_PREFIX)
        graph.output(copies[self._all[end - 1].output])
        return fx.GraphModule(self._root, graph)

    def shared(self) -> Iterator[tuple[str, int, int]]:
        """Yield each weight that several layers use: the name, and the first and the last of these layers."""
        users: dict[int, tuple[str, list[int]]] = {}
        for number, layer in enumerate(self._all):
            for name, weight in self._weights(layer):
                users.setdefault(id(weight), (name, []))[1].append(number)
        for name, numbers in users.values():
            if numbers[0] < numbers[-1]:
                yield name, numbers[0], numbers[-1]

    def _weights(self, layer: Layer) -> Iterator[tuple[str, Any]]:
        for node in layer.nodes:
            name = str(node.target).removeprefix(_PREFIX)
            if node.op == "call_module":
                yield from self._module.get_submodule(name).named_parameters(name)
            elif node.op == "get_attr" and not name.startswith(_MADE):
                yield name, attrgetter(name)(self._module)


class _Root(nn.Module):
    """Passes one input to the module, so that other arguments of its ``forward`` keep their defaults."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, rows: Any) -> Any:
        return self.module(rows)


class _Tracer(fx.Tracer):
    # Operations on buffers belong to the graph, and do not happen in the trace.
    proxy_buffer_attributes = True

    def __init__(self, opened: nn.Module, smallest: float) -> None:
        super().__init__()
        self._opened, self._smallest = opened, smallest
        self._modes = _modes()

    def create_node(self, *args: Any, **options: Any) -> fx.Node:
        if _modes() != self._modes:
            raise ValueError("a part runs in torch.no_grad() or torch.autocast(), which a trace would lose")
        return super().create_node(*args, **options)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # `_encoded` would leave out hooks, and a `forward` of the instance.
        customized = "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks  # noqa: SLF001
        if type(m) is nn.TransformerEncoder and len(args) == 1 and not kwargs and not customized:
            forward = functools.partial(_encoded, m)
        return super().call_module(m, forward, args, kwargs)

    def is_leaf_module(self, m: nn.Module, _: str) -> bool:
        if m._backward_hooks or m._backward_pre_hooks:  # noqa: SLF001  (a trace would lose them)
            return True
        if m is self._opened or type(m) is nn.Sequential:
            return False
        if not any(m.children()) or sum(each.numel() for each in m.parameters()) <= self._smallest:
            return True
        try:
            _Tracer(m, self._smallest).trace(_Root(m))
        except Exception:  # noqa: BLE001  (the forward of the user may raise anything when it gets no tensor)
            return True
        return False


def _encoded(encoder: nn.TransformerEncoder, rows: Any) -> Any:
    """Do as the ``forward`` of the encoder without masks, whose conditions torch.fx does not trace."""
    for layer in encoder.layers:
        rows = layer(rows)
    return rows if encoder.norm is None else encoder.norm(rows)


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), *map(torch.is_autocast_enabled, ("cpu", "cuda"))


def _traced(module: nn.Module, share: float) -> tuple[fx.Graph, dict[str, torch.Tensor]]:
    """Return the operations of a module, and the tensors by name that its `forward` makes of nothing."""
    kind = type(module).__name__
    smallest = share * sum(weight.numel() for weight in module.parameters())
    graphs, made = [], []
    try:
        for training in (True, False):
            with mode(module, training=training):
                root = _Root(module)
                graphs.append(_Tracer(module, smallest).trace(root))
                made.append({name: value for name, value in vars(root).items() if isinstance(value, torch.Tensor)})
    except Exception as error:
        raise InvalidRequest(
            f"{kind}.forward cannot be cut into stages, because torch.fx does not trace the code: {error}. Move the "
            "part that depends on values into a submodule, or pass an nn.Sequential of layers"
        ) from error
    # A trace keeps the value of `self.training`, which the stages would not change any more.
    if str(graphs[0]) != str(graphs[1]) or not all(map(torch.equal, *(each.values() for each in made))):
        raise InvalidRequest(
            f"{kind}.forward depends on self.training, or on random numbers that are not made of its input, which a "
            "trace would fix. Use the submodule of torch.nn, for example nn.Dropout, and torch.randn_like(rows)."
        )
    for node in graphs[0].nodes:
        if node.op == "get_attr" and node.target in made[0]:
            node.target = f"{_MADE}{node.target}"
    return graphs[0], {f"{_MADE}{name}": value for name, value in made[0].items()}


@contextmanager
def mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Set a module to training or evaluation, and restore the modes of all submodules at the end."""
    before = {child: child.training for child in module.modules()}
    try:
        module.train(training)
        yield
    finally:
        for child, was_training in before.items():
            child.training = was_training


def _layers(graph: fx.Graph, source: fx.Node) -> Iterator[Layer]:
    """Yield the layers: they end where a single value is needed later."""
    nodes = [node for node in graph.nodes if node.op not in {"placeholder", "output"}]
    place = {node: number for number, node in enumerate(nodes)}
    last = {node: max(place.get(user, len(nodes)) for user in node.users) for node in [source, *nodes] if node.users}
    needed: dict[fx.Node, int] = {source: last.get(source, -1)}
    gathered: list[fx.Node] = []
    for number, node in enumerate(nodes):
        gathered.append(node)
        needed[node] = last.get(node, number)
        needed = {each: until for each, until in needed.items() if until > number}
        if len(needed) == 1 and (output := next(iter(needed))) is not source:
            yield Layer(_name(gathered), tuple(gathered), output)
            gathered = []


def _name(nodes: list[fx.Node]) -> str:
    names = [str(node.target).removeprefix(_PREFIX) for node in nodes if node.op == "call_module"]
    names = names or [nodes[-1].name]
    return names[0] if len(names) == 1 else f"{names[0]}…{names[-1]}"


def initialize(module: nn.Module, seed: int) -> nn.Module:
    """Give memory to weights that are on the meta device, initialized by the ``reset_parameters`` of their modules.

    Parameters
    ----------
    module
        A part of a module; changed in place.
    seed
        Seed of the numbers that the initialization of each submodule draws, beside the name of the submodule.

    Raises
    ------
    InvalidRequest
        If weights on the meta device belong to a module without ``reset_parameters``.

    Notes
    -----
    Other than `workbench.torch.materialize`, which draws the numbers of all modules one after the other.
    """
    made: dict[torch.Tensor, torch.Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        for name, child, reset in without_memory(module):
            # The values do not depend on the layers, whose number differs between layouts.
            torch.manual_seed(seed + zlib.crc32(name.encode()))
            draw(child, reset, made)
    return module


def release(module: nn.Module, kept: nn.Module) -> None:
    """Move the weights of a module to the meta device, except those of a part that is kept."""
    held = {id(each) for each in (*kept.parameters(), *kept.buffers())}
    for child in module.modules():
        # `Module.to` would move the weights that are kept, too.
        for name, weight in [*child.named_parameters(recurse=False), *child.named_buffers(recurse=False)]:
            if id(weight) not in held:
                moved = weight.detach().to("meta")
                is_parameter = isinstance(weight, nn.Parameter)
                setattr(child, name, nn.Parameter(moved, weight.requires_grad) if is_parameter else moved)
