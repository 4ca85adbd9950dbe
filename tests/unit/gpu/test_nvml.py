"""Which GPUs a process sees, and what they do, from a fake of nvidia-ml-py."""

from __future__ import annotations

import sys

import pytest
from support.fake_nvml import fake_nvml

from workbench.gpu.devices import Gpu, GpuMeter, visible_gpus

GPUS = ("GPU-aa", "GPU-ab", "GPU-b")


@pytest.fixture
def nvml(monkeypatch):
    def put(*uuids, **values):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(*uuids, **values))

    return put


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, ["GPU-aa", "GPU-ab", "GPU-b"]),
        ("2,0", ["GPU-b", "GPU-aa"]),
        ("GPU-ab", ["GPU-ab"]),
        ("GPU-b, 1", ["GPU-b", "GPU-ab"]),
        ("MIG-known", ["MIG-known"]),
        ("0,7,1", ["GPU-aa"]),
        ("MIG-unknown,0", []),
        ("", []),
        ("-1", []),
    ],
)
def test_a_process_sees_the_gpus_that_cuda_would_show(nvml, variable, seen):
    nvml(*GPUS)
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}

    assert [gpu.uuid for gpu in visible_gpus(environment)] == seen


def test_a_gpu_has_a_name_and_memory(nvml):
    nvml("GPU-aa")

    assert visible_gpus({}) == (Gpu("GPU-aa", "NVIDIA H100", 80 << 30),)


@pytest.mark.parametrize("module", [None, fake_nvml("GPU-aa", driver=False)])
def test_without_the_package_or_a_driver_there_are_no_gpus(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)

    assert visible_gpus({}) == ()
    assert GpuMeter().sample() == {"gpu": 0, "gpu_memory": 0, "gpu_memory_total": 0}


def test_load_is_a_mean_and_memory_a_sum_of_the_gpus_that_the_process_sees(nvml, monkeypatch):
    nvml(*GPUS, load=30)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")

    values = GpuMeter().sample()

    assert values == {"gpu": pytest.approx(30), "gpu_memory": 2 << 30, "gpu_memory_total": 160 << 30}


def test_a_part_of_a_gpu_has_memory_and_no_load(nvml, monkeypatch):
    nvml(*GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-known")

    assert GpuMeter().sample() == {"gpu": 0, "gpu_memory": 1 << 30, "gpu_memory_total": 80 << 30}


def test_a_gpu_that_the_driver_has_lost_or_may_not_read_does_not_stop_a_rank(nvml):
    nvml("GPU-divided", None, "GPU-b")

    assert [(gpu.uuid, gpu.memory) for gpu in visible_gpus({})] == [("GPU-divided", 0), ("GPU-b", 80 << 30)]
    assert [gpu.uuid for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-b,1"})] == ["GPU-b"]
    assert GpuMeter().sample() == {"gpu": 50, "gpu_memory": 1 << 30, "gpu_memory_total": 80 << 30}
