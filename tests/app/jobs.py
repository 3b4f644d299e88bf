"""What the workers of a test are asked to do."""

import os
import signal
import time
from pathlib import Path

import torch


def pid():
    return os.getpid()


def sleep(seconds, begun=None):
    if begun is not None:
        Path(begun).write_text(str(os.getpid()))
    time.sleep(seconds)
    return os.getpid()


def until_there(path):
    while not Path(path).exists():
        time.sleep(0.01)
    return True


def allocate(mebibytes):
    return torch.ones(mebibytes * 2**17, dtype=torch.float64).sum().item()


def fail(error):
    raise error


def die():
    os.kill(os.getpid(), signal.SIGKILL)
