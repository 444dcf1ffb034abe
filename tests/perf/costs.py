"""What graphs cost besides their calls: memory held, many signatures, first calls.

Each experiment takes the device and the settings and returns plain data for the report;
sizes in bytes, times in microseconds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from graphjit import graphed
from perf import peers
from perf.devices import CudaDevice, Device
from perf.settings import Settings
from perf.subjects import FRESH, Subject
from perf.times import torch_mlp
from perf.timing import collector_off, measure_host, summarize
from perf.workloads import Function, make_chain, make_mlp, normal, pairs, parameters

ROWS_A_SIGNATURE = 8
ONE, MANY = "1 signature", "many signatures"
CHANGING = "many signatures, another one at each call"


# -- memory


def measure_memory(device: Device, settings: Settings) -> dict[str, Any]:
    """Measure what stays on the device after many signatures of a network.

    All graphs stay alive until the end, so that none is given memory that another let go.
    """
    xp = device.xp
    parts = parameters(xp.asarray, settings.mlp_layers, settings.mlp_width)
    fn = make_mlp(*parts, xp.maximum)
    batches = [ROWS_A_SIGNATURE * (i + 1) for i in range(settings.memory_signatures)]
    rng = np.random.default_rng(2)

    def inputs(rows: int) -> Any:
        return xp.asarray(normal(rng, rows, settings.mlp_width))

    _warm_up(fn, inputs, batches)  # CUDA loads kernels at their first use, for good
    kept: list[Any] = []
    held: dict[str, dict[str, int]] = {}
    call: Any = graphed(max_entries=None)(fn)
    held[FRESH] = _held(device, device.used_nbytes, lambda: _call_twice(call, inputs, batches))
    entries = call.cache_entries()
    for kind in ("constant_nbytes", "external_nbytes", "table_nbytes"):
        held[FRESH][kind] = sum(getattr(entry, kind) for entry in entries)
    missing: dict[str, str] = {}
    if isinstance(device, CudaDevice):
        measures: dict[str, Callable[[], dict[str, int]]] = {
            peers.CUPY_GRAPH: partial(_held_by_cupy, device, fn, inputs, batches, kept),
            peers.TORCH_GRAPH: partial(_held_by_torch, device, parts, inputs, batches, kept),
        }
        for name, measure in measures.items():
            try:
                held[name] = measure()
            except Exception as error:  # noqa: BLE001 - as in Subjects.extend
                missing[name] = f"{type(error).__name__}: {error}"
    return {"n_signatures": len(entries), "held": held, "missing": missing}


def _warm_up(fn: Function, inputs: Callable[[int], Any], batches: list[int]) -> None:
    for rows in batches:
        fn(inputs(rows))


def _call_twice(call: Function, inputs: Callable[[int], Any], batches: list[int]) -> None:
    for rows in batches:
        call(inputs(rows))
        call(inputs(rows))


def _held(
    device: Device, pool_nbytes: Callable[[], int], make: Callable[[], None]
) -> dict[str, int]:
    """Return what is held after ``make`` that was not held before it."""
    gc.collect()
    pool_before, device_before = pool_nbytes(), device.device_used_nbytes()
    make()
    device.synchronize()
    gc.collect()
    return {
        "pool_nbytes": pool_nbytes() - pool_before,
        "device_nbytes": device.device_used_nbytes() - device_before,
    }


def _held_by_cupy(
    device: CudaDevice,
    fn: Function,
    inputs: Callable[[int], Any],
    batches: list[int],
    kept: list[Any],
) -> dict[str, int]:
    graphs: list[peers.CupyGraph] = []
    kept.append(graphs)

    def make() -> None:
        for rows in batches:
            graphs.append(peers.CupyGraph(device, fn, (inputs(rows),)))
            graphs[-1].with_copies()(inputs(rows))

    return _held(device, lambda: sum(g.pool.total_bytes() for g in graphs), make)


def _held_by_torch(
    device: CudaDevice,
    parts: tuple[list[Any], list[Any]],
    inputs: Callable[[int], Any],
    batches: list[int],
    kept: list[Any],
) -> dict[str, int]:
    torch = peers.prepare_torch(device)
    fn = torch_mlp(device, *parts)
    graphs: list[peers.TorchGraph] = []
    kept.append(graphs)

    def tensor(rows: int) -> Any:
        return torch.from_dlpack(inputs(rows))

    def reserved() -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.memory_reserved())

    def make() -> None:
        for rows in batches:
            graphs.append(peers.TorchGraph(fn, (tensor(rows),)))
            graphs[-1].with_copies()(tensor(rows))

    _warm_up(fn, tensor, batches)
    return _held(device, reserved, make)


# -- many signatures


def measure_signatures(device: Device, settings: Settings) -> dict[str, Any]:
    """Measure the hit of one signature while its cache holds one or many."""
    asarray = device.xp.asarray
    arguments = pairs(asarray, settings.n_inputs, settings.chain_elements)
    one: Any = graphed(make_chain(1))
    many: Any = graphed(max_entries=None)(make_chain(1))
    for _ in range(3):
        one(*arguments[0])
        many(*arguments[0])
    others = _fill(many, device, settings)
    subjects = [
        Subject(ONE, one, arguments),
        Subject(MANY, many, arguments),
        Subject(CHANGING, many, others),
    ]
    host = measure_host(subjects, device.synchronize, settings.other_samples)
    queued = measure_host(
        subjects, device.synchronize, settings.other_samples, settings.queued_calls
    )
    n_signatures = many.cache_info().current_entries
    many.cache_clear()
    return {"n_signatures": n_signatures, "host": host, "queued": queued}


def _fill(call: Any, device: Device, settings: Settings) -> list[tuple[Any, ...]]:
    """Add signatures, as many as the settings want and the time allows."""
    stop = time.monotonic() + settings.many_signatures_seconds
    arguments: list[tuple[Any, ...]] = []
    for i in range(1, settings.many_signatures):
        (pair,) = pairs(device.xp.asarray, 1, settings.chain_elements + i)
        for _ in range(3):
            call(*pair)
        arguments.append(pair)
        if time.monotonic() > stop:
            break
    return arguments


# -- first calls


def measure_first_calls(device: Device, settings: Settings) -> dict[str, Any]:
    """Measure capture and instantiation, and first calls beside eager ones, by number of nodes."""
    return {str(n): _first_calls(device, settings, n) for n in settings.first_call_sizes}


def _first_calls(device: Device, settings: Settings, n_kernels: int) -> dict[str, Any]:
    fn = make_chain(n_kernels)
    (arguments,) = pairs(device.xp.asarray, 1, settings.chain_elements)
    call: Any = graphed(fn)
    call(*arguments)  # compiles graphjit's own kernels
    capture_us, instantiate_us, first_us, eager_us = [], [], [], []
    for _ in range(settings.first_calls):
        call.cache_clear()
        with collector_off():
            eager_us.append(_time(fn, arguments, device))
            first_us.append(_time(call, arguments, device))
        (entry,) = call.cache_entries()
        capture_us.append(entry.capture_us)
        instantiate_us.append(entry.instantiate_us)
    return {
        "capture": asdict(summarize(capture_us)),
        "instantiate": asdict(summarize(instantiate_us)),
        "beyond_eager": statistics.median(first_us) - statistics.median(eager_us),
    }


def _time(call: Function, arguments: tuple[Any, ...], device: Device) -> float:
    device.synchronize()
    begin = time.perf_counter_ns()
    call(*arguments)
    return (time.perf_counter_ns() - begin) / 1000


EXPERIMENTS = {
    "memory": measure_memory,
    "signatures": measure_signatures,
    "first-call": measure_first_calls,
}
