"""Where modules are cut, in one process."""

from __future__ import annotations

import copy
import itertools
import random

import numpy as np
import pytest
import torch
from support.raised import raises
from torch import nn

from benchmarks.deep_nets import resnet, transformer
from workbench.errors import InvalidRequest
from workbench.torch.pipelines.costs import Cost, measured
from workbench.torch.pipelines.layers import Layers, initialize, mode, release
from workbench.torch.pipelines.plan import Layout, Plan, cut, in_flight


def cost(seconds=1.0, saved=10, held=8, **changes):
    known = {"name": "layer", "weights": 1, "trained": True, "shape": (2, 3), "dtype": torch.float32}
    return Cost(seconds=seconds, saved=saved, held=held, **(known | changes))


def layout(ranks=4, **changes):
    known = {"size": 32, "stages": 4, "replicas": None, "microbatches": 8, "schedule": "1f1b"}
    return Layout.of(ranks, **(known | changes))


def plan(costs, together=(), **changes):
    return Plan.of(layout(**changes), torch.empty(4, 3), costs, together)


def largest(costs, firsts, kept, microbatches):
    """Return the largest share of time or memory of a stage."""
    time = sum(each[0] for each in costs)
    memory = microbatches * sum(each[1] for each in costs) + sum(each[2] for each in costs)
    parts = [costs[first:end] for first, end in itertools.pairwise([*firsts, len(costs)])]
    return max(
        max(
            sum(each[0] for each in part) / time,
            sum(kept(stage) * each[1] + each[2] for each in part) / memory,
        )
        for stage, part in enumerate(parts)
    )


def encoder(norm=None):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 4, norm, enable_nested_tensor=False
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_no_other_cuts_have_a_smaller_largest_share(seed, schedule):
    random = np.random.default_rng(seed)
    costs = [(float(a), int(b), int(c)) for a, b, c in random.integers(1, 100, (9, 3))]
    forbidden = {3, 6}

    def kept(stage):
        return in_flight(schedule, stage, 3, 4)

    found = cut(costs, 3, kept, 4, forbidden)

    others = [(0, a, b) for a, b in itertools.combinations(set(range(1, 9)) - forbidden, 2)]
    assert largest(costs, found, kept, 4) == pytest.approx(min(largest(costs, cuts, kept, 4) for cuts in others))
    assert not forbidden & set(found)


def test_a_stage_keeps_microbatches_until_those_after_it_have_passed_them_back():
    assert [layout().kept(stage) for stage in range(4)] == [4, 3, 2, 1]
    assert [layout(schedule="gpipe").kept(stage) for stage in range(4)] == [8] * 4
    assert [layout(stages=2).each, layout(stages=2, schedule="bidirectional").each] == [4, 2]
    assert [layout(schedule="bidirectional").place(stage, 1) for stage in range(4)] == [3, 2, 1, 0]


def test_a_plan_states_what_each_rank_holds():
    # Outputs have 25,000 bytes, and each of 8 microbatches has memory for a message.
    known = {"saved": 1_000_000, "held": 2_000_000, "weights": 250_000, "shape": (25, 250)}
    costs = [cost(name=f"block{number}", **known) for number in range(8)]
    lines = [line.split("  ") for line in plan(costs).table().splitlines()[2:]]
    lines = [[word.strip() for word in line if word] for line in lines]

    assert plan(costs).table().startswith("pipeline: 4 stages x 1 replica, 1f1b, batches of 32 rows in ")
    assert lines[0] == ["0", "0", "block0…block1", "500,000", "4.0", "8.2", "25%"]
    assert lines[3] == ["3", "3", "block6…block7", "500,000", "4.0", "2.2", "25%"]
    both = plan(costs, schedule="bidirectional").table().splitlines()
    assert [both[line].split()[:4] for line in (2, 5)] == [["0", "0", "and", "3"], ["3", "3", "and", "0"]]
    assert all("1,000,000" in line and "8.2" in line for line in (both[2], both[5]))


def test_cuts_are_only_where_a_gradient_passes_and_shared_weights_stay_together():
    costs = [cost(trained=False), cost(), cost(dtype=torch.int64), cost(), cost(dtype=None), cost()]

    assert plan(costs, ranks=2, stages=2).firsts == (0, 4)
    assert plan([cost(), cost(), cost(trained=False), cost()], ranks=3, stages=3, size=24, microbatches=6).firsts == (
        0,
        1,
        3,
    )
    with raises(InvalidRequest, option="stages"):
        plan(costs)
    with pytest.raises(InvalidRequest, match=r"1 stage at most.*\(w is a weight of layer and layer\)"):
        plan(costs, [("w", 1, 5)], ranks=2, stages=2)


def whole(layers):
    return layers.part(0, len(layers))


class Traced(nn.Module):
    """Two layers, with a function of the hidden units between them."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = nn.Linear(4, 4), nn.Linear(4, 4), function
        self.register_buffer("mean", torch.arange(4.0))

    def forward(self, rows):
        return self.second(self.function(self, self.first(rows)))


def without_gradients(net, hidden):
    with torch.no_grad():
        return net.first(hidden)


def in_bfloat16(net, hidden):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.first(hidden).float()


def in_half_on_a_gpu(net, hidden):
    # `torch.autocast("cuda")` has no effect on a host without a GPU.
    torch.set_autocast_enabled("cuda", True)
    try:
        return net.first(hidden).float()
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.parametrize(
    "function",
    [
        lambda _, hidden: hidden * torch.tril(torch.ones(4, 4))[1],
        lambda net, hidden: hidden + net.first(torch.arange(4.0)),
        lambda net, hidden: hidden * net.mean[:4].exp(),
        lambda net, hidden: hidden - net.mean.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1),
    ],
    ids=["constant", "constant for a layer", "function of a buffer", "buffer that changes"],
)
def test_tensors_of_forward_and_buffers_are_those_of_the_module(function):
    torch.manual_seed(0)
    net, rows = Traced(function), torch.randn(3, 4)
    twin = copy.deepcopy(net)
    layers = Layers(net, 0.5)
    part = layers.part(0, len(layers))
    for _ in range(2):
        torch.testing.assert_close(part(rows), twin(rows))
    torch.testing.assert_close(net.mean, twin.mean)
    assert list(net.state_dict()) == list(twin.state_dict())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda _, hidden: hidden + torch.randn(4), "depends on .* random numbers .* torch.randn_like"),
        (lambda _, hidden: hidden * random.random(), "depends on .* random numbers"),
        (without_gradients, r"cannot be cut .* torch.no_grad\(\).* Move the part"),
        (in_bfloat16, r"cannot be cut .* torch.autocast\(\), which a trace would lose"),
        (in_half_on_a_gpu, r"cannot be cut .* torch.autocast\(\), which a trace would lose"),
    ],
    ids=["tensor", "number", "no gradients", "precision", "precision of a GPU"],
)
def test_what_a_trace_would_fix_or_lose_is_refused(function, said):
    with pytest.raises(InvalidRequest, match=f"^Traced.forward {said}"):
        Layers(Traced(function), 0.5)


@pytest.mark.parametrize(
    ("module", "rows"),
    [
        (resnet(20, 2), torch.randn(2, 3, 8, 8)),
        (transformer(2), torch.randint(0, 64, (2, 16))),
        (encoder(), torch.randn(2, 5, 8)),
        (nn.Sequential(nn.Linear(8, 8), encoder(norm=nn.LayerNorm(8)), nn.Linear(8, 1)), torch.randn(2, 5, 8)),
        (nn.Linear(3, 3), torch.randn(2, 3)),
    ],
    ids=["sequential", "traced", "encoder", "part that is an encoder", "one layer"],
)
def test_the_layers_are_the_module_with_its_names(module, rows):
    layers = Layers(module, 0.25)
    passed = rows
    for number in range(len(layers)):
        passed = layers.part(number, number + 1)(passed)

    torch.testing.assert_close(passed, module(rows))
    torch.testing.assert_close(whole(layers)(rows), module(rows))
    assert set(whole(layers).state_dict()) == set(module.state_dict())
    assert [*layers.shared()] == []


def test_an_encoder_of_a_transformer_is_cut_between_its_layers():
    layers = Layers(nn.Sequential(nn.Linear(8, 8), encoder(norm=nn.LayerNorm(8))))
    names = [layers[number].name for number in range(len(layers))]

    assert names == ["0", "1.layers.0", "1.layers.1", "1.layers.2", "1.layers.3", "1.norm"]


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.register_forward_hook(lambda _module, _args, output: output * 2),
        lambda net: net.register_forward_pre_hook(lambda _, args: (args[0] * 2,)),
        lambda net: net.register_full_backward_hook(lambda _module, before, _after: (before[0] * 2,)),
        lambda net: net.register_full_backward_pre_hook(lambda _, after: (after[0] * 2,)),
        lambda net: setattr(net, "forward", lambda rows, **_: rows * 2),
    ],
    ids=["hook", "pre-hook", "backward hook", "backward pre-hook", "forward"],
)
@pytest.mark.parametrize("part", ["1", "2", "2.layers.1"])
def test_modules_keep_hooks_and_their_own_forward(change, part):
    inner = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    module, rows = nn.Sequential(nn.Linear(8, 8), inner, encoder()), torch.randn(2, 5, 8)
    change(module.get_submodule(part))
    cut = whole(Layers(module))

    torch.testing.assert_close(cut(rows), module(rows))
    gradients = [torch.autograd.grad(net(rows).square().sum(), module[0].weight)[0] for net in (cut, module)]
    torch.testing.assert_close(*gradients)


def test_a_large_submodule_is_opened_and_arguments_with_defaults_are_kept():
    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

        def forward(self, rows, mask=None):
            for block in self.blocks:
                rows = block(rows)
            return rows if mask is None else rows * mask

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.head = Trunk(), nn.Linear(4, 1)

        def forward(self, rows, mask=None):
            return self.head(self.trunk(rows, mask))

    layers = Layers(Net(), 0.5)
    assert [layer.name for layer in layers] == [*(f"trunk.blocks.{number}" for number in range(4)), "head"]


def _branches(net, rows):
    return net.layer(rows).relu() if net.training else net.layer(rows)


def _drops(net, rows):
    return nn.functional.dropout(net.layer(rows), 0.5, net.training)


def _attends(net, rows):
    rows = net.layer(rows)
    return nn.functional.scaled_dot_product_attention(rows, rows, rows, dropout_p=0.1 if net.training else 0.0)


def _always_drops(net, rows):
    return nn.functional.dropout(net.layer(rows), training=True)


def net_of(function):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.frozen = nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.frozen.eval()

        def forward(self, rows):
            return function(self, rows)

    return Net()


@pytest.mark.parametrize("function", [_branches, _drops, _attends])
def test_code_that_depends_on_the_mode_is_refused_and_the_modes_remain(function):
    module = net_of(function)
    with pytest.raises(InvalidRequest, match=r"Net.forward depends on self.training, .* for example nn.Dropout"):
        Layers(module)
    assert [child.training for child in module.modules()] == [True, True, False]


def test_the_modes_are_restored_after_an_error():
    module = net_of(_always_drops)
    with pytest.raises(ZeroDivisionError), mode(module, training=False):
        raise ZeroDivisionError
    assert [child.training for child in module.modules()] == [True, True, False]


def test_code_that_is_the_same_in_both_modes_is_cut():
    assert [layer.name for layer in Layers(net_of(_always_drops))] == ["layer", "dropout"]


def test_costs_count_what_a_layer_saves_and_leave_running_means_unchanged():
    module = nn.Sequential(nn.Linear(10, 20, bias=False), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 5, bias=False))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first, norm, relu, last = measured(Layers(module), torch.randn(4, 10))

    # A linear layer saves its input, a normalization its input and two rows, and a ReLU its output.
    assert [first.saved, norm.saved, relu.saved, last.saved] == [4 * 4 * 10, 4 * (4 * 20 + 2 * 20), 4 * 4 * 20, 320]
    assert (first.weights, first.held, norm.weights) == (200, 2 * 4 * 200, 40)
    assert last.shape == (4, 5)
    assert min(each.seconds for each in (first, norm, relu, last)) > 0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(weight.grad is None for weight in module.parameters())


def test_a_layer_is_measured_until_its_two_shortest_times_agree(monkeypatch):
    spent = iter([9, 5, 8, 2, 7, 1, 1.05, *[6] * 9])
    begins = itertools.repeat(0)
    clock = itertools.chain.from_iterable(zip(begins, spent, strict=False))
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    first, last = measured(Layers(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))), torch.randn(4, 3))

    assert (first.seconds, last.seconds) == (1, 6)


def test_a_stage_almost_without_work_is_named_with_the_layer_that_is_not_cut():
    uneven = plan([cost(0.01, name="a"), cost(9.0, name="b"), cost(0.01), cost(0.01)]).uneven()

    assert uneven == (
        "stage 0 has 0% of the time, and stage 1, with the layer b, has 100%. Use the parts of b as layers of an "
        "nn.Sequential, or fewer stages."
    )
    assert plan([cost()] * 4).uneven() == ""


class _ActsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.conv = nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, rows):
        return self.conv(self.act(rows))


def test_layers_that_work_in_place_are_measured_and_begin_stages_with_a_copy():
    def block(channels):
        return nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    module = nn.Sequential(nn.ReLU(inplace=True), *block(3), *block(4), _ActsFirst(), *block(4)).double()
    layers, given = Layers(module), torch.randn(4, 3, 5, 5, dtype=torch.float64)
    rows = given.clone()
    costs = measured(layers, rows)
    # As many stages as there can be: each layer with weights begins one.
    its = Plan.of(layout(7, stages=7, size=28, microbatches=7), rows, costs)

    assert [cost.in_place for cost in costs] == [True, *[False, False, True] * 2, True, False, False, True]
    assert [stage for stage in range(7) if its.clones(stage)] == [0, 4]
    passed = rows
    for stage in range(7):
        received = passed.detach().requires_grad_()
        passed = layers.part(*its.layers(stage), cloned=its.clones(stage))(received)
        passed.sum().backward()
        assert received.grad is not None
    assert torch.equal(rows, given)
    torch.testing.assert_close(passed, module(given))


def test_other_weights_are_released_and_those_on_the_meta_device_get_memory_layer_by_layer():
    with torch.device("meta"):
        module = resnet(11, 2)
    layers = Layers(module)
    part = initialize(layers.part(0, 2), 0)
    again = initialize(Layers(resnet(11, 2).to("meta")).part(0, 2), 0)

    assert not any(weight.is_meta for weight in part.parameters())
    assert all(torch.equal(one, other) for one, other in zip(part.parameters(), again.parameters(), strict=True))
    real = resnet(11, 2)
    kept = Layers(real).part(0, 2)
    release(real, kept)
    assert {name for name, weight in real.named_parameters() if not weight.is_meta} == dict(
        kept.named_parameters()
    ).keys()
    assert all(value.is_meta for name, value in real.named_buffers() if name not in dict(kept.named_buffers()))
