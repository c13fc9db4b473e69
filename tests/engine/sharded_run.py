"""A training under FSDP on the CPU.

accelerate offers FSDP on accelerators only. torch shards on any device, so accelerate's state is
told that it is one.
"""

from pathlib import Path

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

from ziggurat.engine import processes, train


def sharded(precision: str, players: int = 1) -> Accelerator:
    found = processes.accelerator(precision)
    AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP
    AcceleratorState._shared_state["fsdp_plugin"] = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
    )
    return found


def run(recipe: Path, out: Path, resume: bool = False) -> None:
    """One process's share."""
    train.accelerator = sharded
    train.train(recipe, out, resume=resume)
