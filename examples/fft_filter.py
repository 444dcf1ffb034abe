# Shows: a band-pass filter by FFT (cuFFT). The filter is another array at every call; the plan's
# work area stays alive as long as the graph does.
#
# /// script
# requires-python = ">=3.11"
# dependencies = ["graphjit[cuda13]"]
# ///

import time

import cupy as cp
import numpy as np

from graphjit import graphed

N_CHANNELS, N_SAMPLES = 16, 4096
SAMPLING_RATE = 1000.0


def apply(signal, response):
    """Filter every channel and scale it to unit root mean square."""
    xp = cp.get_array_module(signal)
    filtered = xp.fft.irfft(xp.fft.rfft(signal, axis=1) * response, n=N_SAMPLES, axis=1)
    return filtered / xp.sqrt((filtered * filtered).mean(axis=1, keepdims=True))


graphed_apply = graphed(apply)


def band_pass(low, high):
    frequencies = np.fft.rfftfreq(N_SAMPLES, 1 / SAMPLING_RATE)
    return np.exp(-(((frequencies - (low + high) / 2) / (high - low)) ** 4))


def seconds(fn, n=300):
    fn(signal, response)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(n):
        fn(signal, response)
    cp.cuda.Device().synchronize()
    return (time.perf_counter() - start) / n


random = np.random.default_rng(0)
time_axis = np.arange(N_SAMPLES) / SAMPLING_RATE
for frequency in (40.0, 90.0, 160.0):
    noisy = np.sin(2 * np.pi * frequency * time_axis) + random.normal(
        scale=2, size=(N_CHANNELS, N_SAMPLES)
    )
    host_response = band_pass(frequency - 5, frequency + 5)
    signal, response = cp.asarray(noisy), cp.asarray(host_response)
    clean = graphed_apply(signal, response)
    peak = np.abs(np.fft.rfft(cp.asnumpy(clean[0]))).argmax() * SAMPLING_RATE / N_SAMPLES
    print(f"strongest frequency after the filter: {peak:.1f} Hz")
    assert abs(peak - frequency) < 5
    assert np.array_equal(cp.asnumpy(clean), cp.asnumpy(apply(signal, response)))
    np.testing.assert_allclose(cp.asnumpy(clean), apply(noisy, host_response), atol=1e-9)

print(f"graphed: {seconds(apply) / seconds(graphed_apply):.1f} times as fast as eager")
assert graphed_apply.cache_info().misses == 1
