"""Settings that every test shares."""

import os

import torch
from hypothesis import settings

# No test reaches out: what is not on the disc is told to be missing.
os.environ.setdefault("NOTSODEEP_OFFLINE", "1")

# The workers of pytest-xdist share the cores; one thread each is faster than all of them competing.
torch.set_num_threads(1)

# The same examples in every run: a red test stays red until it is understood.
settings.register_profile("notsodeep", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("notsodeep")
