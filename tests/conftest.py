"""Settings that every test shares."""

import torch
from hypothesis import settings

# The workers of pytest-xdist share the cores; one thread each is faster than all of them competing.
torch.set_num_threads(1)

# The same examples in every run: a red test stays red until it is understood.
settings.register_profile("notsodeep", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("notsodeep")
