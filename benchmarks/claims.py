"""What the papers say of speed and memory, measured here: ratios, in one interleaved run.

    python benchmarks/claims.py                 # into benchmarks/results/claims.json

Each claim is of two models (or two ways to attend): what the paper prints of them, what is counted
of ours, and what a clock on this machine says. All take turns in one run, and a ratio is of the
same round (``ziggurat.engine.bench``). The papers timed on a GPU, with attention not yet fused:
where that matters, both are measured. So are timm's models as they are and with our linear layers
(``ziggurat.layers.linear``): what is left then is the architecture's.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import study
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ziggurat.cli.verb import progress
from ziggurat.engine import bench, results
from ziggurat.engine.measure import count, peak_memory
from ziggurat.engine.tables import tables
from ziggurat.layers import windows
from ziggurat.layers.attention import Attention
from ziggurat.layers.linear import Linear
from ziggurat.models.regionvit import R2L, R2LStage, Regions, Tokens
from ziggurat.models.registry import create_model

RESULTS = study.RESULTS / "claims.json"
SEED = 0


class Side(NamedTuple):
    """A model of a claim, and its row in the paper's table, if it has one."""

    model: str
    row: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    fused: bool = True  # attention's kernel
    lent: bool = False  # our linear layers, to timm's

    def run(self, batch: int) -> bench.Run:
        """A pass in inference."""
        model = create_model(self.model, **dict(self.options))
        if self.lent:
            model.apply(lend)
        run = bench.inference(model, torch.randn(batch, 3, 224, 224))
        return run if self.fused else partial(unfused, run)


class Claim(NamedTuple):
    """One sentence or table of one paper: ``ours`` is so many times as fast as ``theirs``."""

    paper: str
    where: str
    about: str
    ours: Side
    theirs: Side
    table: str = ""  # whose throughputs are compared; else it is FLOPs that the paper compares
    printed: float = 0.0  # their ratio, where it is in the text

    @property
    def claimed(self) -> float:
        """What the paper prints, as a ratio."""
        if not self.table:
            return self.printed
        (found,) = [table for table in tables(self.paper) if table.number == self.table]
        printed = {row.name: row.printed for row in found.rows}
        ours, theirs = (
            float(str(printed[side.row]["throughput"])) for side in (self.ours, self.theirs)
        )
        return round(ours / theirs, 2)


SWIN = "timm/swin_{}_patch4_window7_224"
MSA = (("attention", "msa"),)
CLAIMS = [
    Claim(
        "rest", "supplement, Table 1", "ResT-Lite with EMSA against MSA",
        Side("rest_lite", "EMSA"), Side("rest_lite", "MSA", MSA), "1",
    ),
    Claim(
        "rest", "supplement, Table 1", "the same without fused attention, as it was then",
        Side("rest_lite", "EMSA", fused=False), Side("rest_lite", "MSA", MSA, False), "1",
    ),
    Claim(
        "hvt", "Section 3.3", "HVT-S-4 against DeiT-S: 3.3 times fewer FLOPs",
        Side("hvt_s_4"), Side("timm/deit_small_patch16_224"), printed=3.3,
    ),
    *(
        Claim(
            "hivit", "Table 3", f"HiViT-{X} against Swin-{X}",
            Side(f"hivit_{size}", f"HiViT-{X}"), Side(SWIN.format(size), f"Swin-{X}"), "3",
        )
        for X, size in (("T", "tiny"), ("S", "small"), ("B", "base"))
    ),
    Claim(
        "nest", "Table 2", "NesT-T against Swin-T",
        Side("nest_tiny", "NesT-T"), Side(SWIN.format("tiny"), "Swin-T"), "2",
    ),
    Claim(
        "nest", "Table 2", "NesT-S against Swin-B, which is as accurate",
        Side("nest_small", "NesT-S"), Side(SWIN.format("base"), "Swin-B"), "2",
    ),
]  # fmt: skip


def lend(layer: nn.Module) -> None:
    """Our way to multiply, if it is a linear layer."""
    if type(layer) is nn.Linear:
        layer.__class__ = Linear


def unfused(run: bench.Run) -> object:
    """Attention as it was then: products and softmax, one after the other."""
    with sdpa_kernel(SDPBackend.MATH):
        return run()


# RegionViT's attention (Section 3: "for a general case with N = 196 and M = 7, the memory savings
# by our proposed method is ~73%"), which is the third stage of its models at 224 pixels.

N, M, SAVED = 196, 7, 73.0


class Maps(TorchDispatchMode):
    """Counts the elements of all attention maps."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Every operation; softmax makes maps."""
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default):
            self.elements += out.numel()
        return out


def attentions(batch: int) -> dict[str, Callable[[], Tensor]]:
    """RegionViT-S's third stage attends by regions, and as a plain layer of its width would."""
    stage = create_model("regionvit_s").eval().stages[2]
    assert isinstance(stage, R2LStage)
    block = stage.blocks[0]
    assert isinstance(block, R2L)
    attention, dim = block.attn, block.norm1.weight.numel()
    plain = Attention(dim, attention.heads).eval()
    side = int(N**0.5)
    regions = Regions(M, windows.cut(side, side, M))
    local = torch.randn(batch, side, side, dim)
    regional = torch.randn(batch, side // M, side // M, dim)
    (groups,) = regions.split(Tokens(regional, local))
    assert attention.bias is not None
    with torch.no_grad():
        (mask,) = attention.bias.masks(regions)

    @torch.no_grad()
    def ours() -> Tensor:
        attention(regional.flatten(1, 2))
        return attention(groups, mask)

    tokens = local.flatten(1, 2)
    return {"R2L": ours, "full": torch.no_grad()(lambda: plain(tokens))}


def attention_memory(batch: int) -> dict[str, Any]:
    """What R2L attention saves: by the paper's formula, counted, and of tensors at the peak."""
    by_formula = N * M**2 + (N // M**2) ** 2
    maps, peaks, fused = {}, {}, {}
    for name, run in attentions(batch).items():
        with Maps() as seen:
            unfused(run)
        maps[name] = seen.elements
        peaks[name] = peak_memory(partial(unfused, run))
        fused[name] = peak_memory(run)

    def saved(found: dict[str, int]) -> float:
        return round(100 * (1 - found["R2L"] / found["full"]), 1)

    return {
        "claimed": SAVED,
        "by_formula": round(100 * (1 - by_formula / N**2), 1),
        "maps": saved(maps),
        "peak_unfused": saved(peaks),
        "peak_fused": saved(fused),
    }


def measure(batch: int, rounds: int) -> dict[str, Any]:
    """All claims in one run."""
    torch.manual_seed(SEED)
    lent = {
        claim.theirs: claim.theirs._replace(lent=True)
        for claim in CLAIMS
        if claim.theirs.model.startswith("timm/")
    }
    plain = [side for claim in CLAIMS for side in (claim.ours, claim.theirs)]
    sides = list(dict.fromkeys([*plain, *lent.values()]))
    runs = {side: side.run(batch) for side in sides}
    with progress("claims") as tick:
        spent = bench.interleaved(runs, rounds, tick)
    memory = {side: peak_memory(run) for side, run in runs.items()}
    costs = {side: count(side.model, **dict(side.options)).macs for side in sides}
    found = [
        {
            "paper": claim.paper,
            "where": claim.where,
            "about": claim.about,
            "quantity": "throughput" if claim.table else "FLOPs",
            "claimed": claim.claimed,
            "macs": round(costs[claim.theirs] / costs[claim.ours], 3),
            "speed": bench.ratio(spent[claim.theirs], spent[claim.ours]).rounded(),
            "lent": None
            if claim.theirs not in lent
            else bench.ratio(spent[lent[claim.theirs]], spent[claim.ours]).rounded(),
            "memory": round(memory[claim.ours] / memory[claim.theirs], 3),
        }
        for claim in CLAIMS
    ]
    return {
        "batch": batch,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "claims": found,
        "regionvit": attention_memory(batch),
    }


def markdown(measured: dict[str, Any]) -> str:
    """The claims as the README shows them."""
    lines = [
        f"| batch {measured['batch']} | the paper | fewer multiply-adds | faster here "
        "| middle half of the rounds | theirs with our linear layers | middle half |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in measured["claims"]:
        low, middle, high = row["speed"]
        lent = "**{1:.2f}** | {0:.2f} to {2:.2f}".format(*row["lent"]) if row["lent"] else " | "
        unit = "" if row["quantity"] == "throughput" else " in FLOPs"
        lines.append(
            f"| {row['about']} ({row['where']}) | {row['claimed']:.2f}{unit} | {row['macs']:.2f} "
            f"| **{middle:.2f}** | {low:.2f} to {high:.2f} | {lent} |"
        )
    found = measured["regionvit"]
    lines += [
        "",
        f"RegionViT's attention with N = {N} and M = {M} saves {found['claimed']:.0f} % of memory "
        f"(Section 3). Its formula says {found['by_formula']:.1f} %, the maps of our third stage, "
        f"regional tokens included, **{found['maps']:.1f} %**. Of all that the layer holds at its "
        f"peak that is {found['peak_unfused']:.1f} % without fused attention; a fused kernel holds "
        f"no map, and little is left to save ({found['peak_fused']:.1f} %).",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, write the results file and the README's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    args = parser.parse_args()
    measured = measure(args.batch, args.rounds)
    print(f"wrote {results.write(args.out, measured, SEED)}")
    study.show(args.out, markdown(measured))
    Console().print(markdown(measured))


if __name__ == "__main__":
    main()
