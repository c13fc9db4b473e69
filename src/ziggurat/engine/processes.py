"""Devices and processes, through accelerate."""

import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState


def accelerator(precision: str) -> Accelerator:
    """What this machine, ``torchrun`` or ``accelerate launch`` offers; precision fp32, bf16, fp16.

    Processes without a device of their own talk through gloo, which accelerate does not do by
    itself.
    """
    AcceleratorState._reset_state()  # else a second run in a process could not differ in precision
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no" if precision == "fp32" else precision,
    )


def spare_cores(processes: int) -> int:
    """Workers for reading: what the machine has beside the processes that compute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(8, (cores or 1) // processes - 1))
