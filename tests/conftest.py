"""Settings that must be made before any test module is imported."""

import os

import torch

# Triton reads this when it is first imported, by whomever; without a GPU kernels are interpreted
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
