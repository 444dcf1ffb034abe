"""The quick start installs what fits the driver of the machine, and nothing large without one."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "which_extra.py"


class FakeDriver:
    """The three calls of libcuda that the script makes."""

    def __init__(self, version: int, n_devices: int = 1, code: int = 0) -> None:
        self.version = version
        self.n_devices = n_devices
        self.code = code

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
        """Return the CUresult."""
        return self.code

    def cuDeviceGetCount(self, count) -> int:  # noqa: N802 - the driver's name
        """Write the number of devices."""
        count._obj.value = self.n_devices
        return 0

    def cuDriverGetVersion(self, version) -> int:  # noqa: N802 - the driver's name
        """Write the version."""
        version._obj.value = self.version
        return 0


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("which_extra", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("fake_driver", "extra"),
    [
        (FakeDriver(13020), "cuda13"),
        (FakeDriver(12040), "cuda12"),
        (FakeDriver(12030), "simulated"),
        (FakeDriver(13000, n_devices=0), "simulated"),
        (FakeDriver(13000, code=100), "simulated"),
    ],
    ids=["13.2", "12.4", "12.3", "no-device", "cuInit-fails"],
)
def test_extra_follows_the_driver(script, monkeypatch, fake_driver, extra):
    """The major version of the driver decides; below 12.4 or without a device: simulated."""
    monkeypatch.setattr(script.ctypes, "CDLL", lambda name: fake_driver)
    assert script.find_extra()[0] == extra


def test_no_driver_means_simulated(script, monkeypatch):
    """Without libcuda the simulated device is used, and the reason is said."""

    def load(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(script.ctypes, "CDLL", load)
    extra, reason = script.find_extra()
    assert extra == "simulated"
    assert "libcuda" in reason
