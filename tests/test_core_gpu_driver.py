"""The driver of a GPU is started without torch, and its absence is no error."""

import ctypes

import pytest
import torch
from click.testing import CliRunner

from abag import cli
from abag.core import gpu_driver
from abag.core.gpu_driver import start_driver


class Driver:
    def __init__(self, init=0):
        self.calls, self.init = [], init

    def cuInit(self, flags):  # noqa: N802 - the driver's names
        self.calls.append(("init", flags))
        return self.init

    def cuDeviceGet(self, device, number):  # noqa: N802
        device._obj.value = 40 + number
        self.calls.append(("device", number))
        return 0

    def cuDevicePrimaryCtxRetain(self, _context, device):  # noqa: N802
        self.calls.append(("context", device.value))
        return 0


@pytest.mark.parametrize(("device", "number"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_the_context_of_the_device_is_made(monkeypatch, device, number):
    driver = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver)
    start_driver(device).join()
    assert driver.calls == [("init", 0), ("device", number), ("context", 40 + number)]


def test_nothing_is_started_for_a_cpu_or_where_the_driver_has_no_device(monkeypatch):
    driver = Driver(init=100)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver)
    assert start_driver("cpu") is None
    start_driver("auto").join()
    assert driver.calls == [("init", 0)]


def test_a_machine_without_a_driver_is_no_error(monkeypatch):
    monkeypatch.setattr(gpu_driver, "LIBRARY", "no-such-library.so")
    start_driver("auto").join()


@pytest.mark.parametrize(("given", "device"), [([], "auto"), (["--device", "cpu"], "cpu")])
def test_fit_starts_the_driver_of_its_device_first(monkeypatch, given, device):
    class Started(Exception):
        pass

    def start(name):
        raise Started(name)

    monkeypatch.setattr(gpu_driver, "start_driver", start)
    command = ["fit", "pairs.csv", "--store", "store", "--run", "run", *given]
    found = CliRunner().invoke(cli.main, command).exception
    assert isinstance(found, Started)
    assert found.args == (device,)


@pytest.mark.gpu
def test_torch_uses_a_gpu_whose_driver_was_started():
    start_driver("cuda").join()
    assert torch.ones(3, device="cuda").sum().item() == 3
