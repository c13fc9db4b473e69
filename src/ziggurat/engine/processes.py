"""Devices and processes, through accelerate."""

import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs


def accelerator(precision: str, players: int = 1) -> Accelerator:
    """What this machine, ``torchrun`` or ``accelerate launch`` offers; precision fp32, bf16, fp16.

    Of several ``players`` only one has gradients at a time: processes do not wait for the others'.

    Processes without a device of their own talk through gloo, which accelerate does not do by
    itself.
    """
    if precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError("fp16 needs a GPU, and there is none: take --set precision=bf16 or fp32")
    AcceleratorState._reset_state()  # else a second run in a process could not differ in precision
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no" if precision == "fp32" else precision,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=players > 1)],
    )


def spare_cores(processes: int) -> int:
    """Workers for reading: what the machine has beside the processes that compute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(8, (cores or 1) // processes - 1))
