"""Times of calls: chains of small kernels, vector additions, a network.

Each experiment takes the device and the settings and returns plain data for the report:
``{"host", "queued", "end_to_end": {subject: Times}, "patch": {subject: kind}, "missing"}``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from perf import peers
from perf.devices import CudaDevice, Device
from perf.settings import Settings
from perf.subjects import (
    FRESH,
    OPTIMIZED,
    SAME_ADDRESSES,
    STATIC,
    Arguments,
    Subject,
    Subjects,
    check_all_hits,
    check_subjects,
    own_subjects,
    same_addresses,
)
from perf.timing import measure_end_to_end, measure_host
from perf.workloads import (
    Function,
    make_branches,
    make_chain,
    make_mlp,
    make_waiting_chain,
    pairs,
    parameters,
)

EAGER_WAITING = "eager, waiting after each addition"
N_ADDS = 100


def measure_chains(device: Device, settings: Settings) -> dict[str, Any]:
    """Measure chains of small kernels, by their number."""
    return {str(n): _measure_chain(device, settings, n) for n in settings.sizes}


def _measure_chain(device: Device, settings: Settings, n_kernels: int) -> dict[str, Any]:
    fn = make_chain(n_kernels)
    arguments = pairs(device.xp.asarray, settings.n_inputs, settings.chain_elements)
    # An eager chain of 100 kernels keeps the host busy for longer than a sample needs.
    most = settings.queued_calls if n_kernels <= 10 else 1
    subjects = own_subjects(fn, arguments, device.to_host, max_eager_calls=most)
    subjects.add(SAME_ADDRESSES, partial(same_addresses, fn, arguments))
    if isinstance(device, CudaDevice):
        _add_peers(subjects, device, fn, arguments, most)
    check_subjects(subjects.found)
    n_samples = settings.samples[n_kernels]
    return {
        "host": measure_host(subjects.found, device.synchronize, n_samples),
        "queued": measure_host(
            subjects.found, device.synchronize, n_samples, settings.queued_calls
        ),
        **_end_to_end(subjects, device, n_samples),
    }


def _add_peers(
    subjects: Subjects, device: CudaDevice, fn: Function, arguments: Arguments, most: int
) -> None:
    """Add the peers of a function that works on tensors as well."""
    subjects.extend(peers.CUPY_GRAPH, partial(peers.cupy_peers, device, fn, arguments))
    make = partial(peers.torch_peers, device, fn, arguments, most)
    subjects.extend(peers.TORCH_GRAPH, make)


def _end_to_end(subjects: Subjects, device: Device, n_samples: int) -> dict[str, Any]:
    return {
        "end_to_end": measure_end_to_end(subjects.found, device.synchronize, n_samples),
        "patch": check_all_hits(subjects.found),
        "missing": subjects.missing,
    }


def measure_adds(device: Device, settings: Settings) -> dict[str, Any]:
    """Measure 100 dependent additions of long vectors, with one wait a call."""
    fn = make_chain(N_ADDS)
    arguments = pairs(device.xp.asarray, settings.n_inputs, settings.adds_elements)
    subjects = own_subjects(fn, arguments, device.to_host, variants=(FRESH, STATIC))
    waiting = make_waiting_chain(N_ADDS, device.synchronize)
    subjects.found.append(Subject(EAGER_WAITING, waiting, arguments, device.to_host))
    if isinstance(device, CudaDevice):
        _add_peers(subjects, device, fn, arguments, 1)
    check_subjects(subjects.found)
    return _end_to_end(subjects, device, settings.other_samples)


def measure_branches(device: Device, settings: Settings) -> dict[str, Any]:
    """Measure chains that need not wait for each other."""
    fn = make_branches(settings.n_branches, settings.branch_kernels)
    arguments = pairs(device.xp.asarray, settings.n_inputs, settings.branch_elements)
    subjects = own_subjects(fn, arguments, device.to_host, variants=(FRESH, OPTIMIZED))
    check_subjects(subjects.found)
    optimized = next(s.call for s in subjects.found if s.name == OPTIMIZED)
    (entry,) = optimized.cache_entries()  # type: ignore[attr-defined]
    return {
        "nodes": entry.nodes,
        "critical_path": entry.critical_path,
        "host": measure_host(subjects.found, device.synchronize, settings.other_samples),
        **_end_to_end(subjects, device, settings.other_samples),
    }


def measure_mlp(device: Device, settings: Settings) -> dict[str, Any]:
    """Measure a network with matrix products."""
    xp = device.xp
    weights, biases = parameters(xp.asarray, settings.mlp_layers, settings.mlp_width)
    fn = make_mlp(weights, biases, xp.maximum)
    shape = (settings.mlp_batch, settings.mlp_width)
    arguments = [(x,) for x, _ in pairs(xp.asarray, settings.n_inputs, *shape)]
    subjects = own_subjects(fn, arguments, device.to_host, variants=(FRESH, STATIC))
    if isinstance(device, CudaDevice):
        make = partial(peers.cupy_peers, device, fn, arguments)
        subjects.extend(peers.CUPY_GRAPH, make)
        make = partial(_torch_mlp_peers, device, weights, biases, arguments)
        subjects.extend(peers.TORCH_GRAPH, make)
    check_subjects(subjects.found)
    graphjit = next(s.call for s in subjects.found if s.name == FRESH)
    nodes = graphjit.cache_entries()[0].nodes  # type: ignore[attr-defined]
    return {
        "nodes": nodes,
        "host": measure_host(subjects.found, device.synchronize, settings.other_samples),
        **_end_to_end(subjects, device, settings.other_samples),
    }


def _torch_mlp_peers(
    device: CudaDevice, weights: list[Any], biases: list[Any], arguments: Arguments
) -> list[Subject]:
    return peers.torch_peers(device, torch_mlp(device, weights, biases), arguments)


def torch_mlp(device: CudaDevice, weights: list[Any], biases: list[Any]) -> Callable[..., Any]:
    """Return the network on tensors that share the weights' memory."""
    torch = peers.prepare_torch(device)
    shared = [[torch.from_dlpack(x) for x in xs] for xs in (weights, biases)]
    return make_mlp(shared[0], shared[1], lambda x, _: torch.relu(x))


EXPERIMENTS = {
    "chains": measure_chains,
    "adds": measure_adds,
    "branches": measure_branches,
    "mlp": measure_mlp,
}
