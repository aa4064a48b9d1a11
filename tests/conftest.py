"""Settings that must be made before any test module is imported."""

import os
import signal

# Before torch is imported, here or in a child: two threads a test on busy cores are 20 times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

# A shell that starts pytest in the background ignores SIGINT, and so would every process tested
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("abag", deadline=None)  # on busy cores any example can be slow
settings.load_profile("abag")

# Triton reads this when it is first imported, by whomever; without a GPU kernels are interpreted
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
