"""A fake hub for the tests of this folder; nothing leaves this machine."""

import sys
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest

sys.path.append(str(Path(__file__).parent))
from fake_hub import FakeHub


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Serve a hub, and point huggingface_hub, in this process and in children, at it."""
    (tmp_path / "hub").mkdir()
    served = FakeHub(tmp_path / "hub")
    settings = {
        "HF_ENDPOINT": served.address,
        "HF_HOME": str(tmp_path / "hf-home"),
        "HF_TOKEN": "hf_fake",
        "HF_HUB_DISABLE_XET": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, served.address)
    for module in (constants, huggingface_hub.file_download):  # which has a copy before 1.0
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", served.address)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf-home" / "hub"))
    yield served
    served.close()
