"""What ``abag doctor`` is asked, and the versions that it and ``abag --version`` report.

Imports no torch: the checks themselves are in `checks`.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from abag import __version__
from abag.core.options import DeviceOptions, EncoderOptions, option

PACKAGES = ("torch", "transformers", "h5py", "numpy", "pandas", "safetensors")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(DeviceOptions, EncoderOptions, group="Checks"):
    """All options of ``doctor``."""

    store: Path | str | None = option(None, help="Store to check; it need not exist.")
    bench: bool = option(False, help="Measure the encoders' tokens/s, and keep them for abag plan.")


def versions() -> dict[str, str]:
    """Return name to version: abag, Python and `PACKAGES`, torch with the CUDA it was built for."""
    found = {name: installed(name) or "not installed" for name in PACKAGES}
    if find_spec("torch") is not None:
        found["torch"] = f"{found['torch'].split('+')[0]} ({cuda_of_torch()})"
    return {"abag": __version__, "Python": platform.python_version(), **found}


def installed(package: str) -> str | None:
    """Return a distribution's version; None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cuda_of_torch() -> str:
    """Say what torch was built for, from the text of its version.py: importing it takes seconds."""
    spec = find_spec("torch")
    origin = spec.origin if spec else None
    try:
        text = Path(origin or "").with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return "build unknown"
    match = re.search(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", text, re.MULTILINE)
    return f"CUDA {match[1]}" if match else "CPU only"
