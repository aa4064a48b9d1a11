"""Settings that must be made before any test module is imported."""

import os

# Before torch is imported, here or in a child: two threads a test on busy cores are 20 times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

settings.register_profile("abag", deadline=None)  # on busy cores any example can be slow
settings.load_profile("abag")

# Triton reads this when it is first imported, by whomever; without a GPU kernels are interpreted
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
