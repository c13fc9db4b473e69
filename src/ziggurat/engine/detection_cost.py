"""What a detector costs, term by term: multiply-adds of one image, found on the meta device."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.engine.measure import on_meta
from ziggurat.tasks.detect import Detect
from ziggurat.tasks.detectors import Detector


def cost(
    detector: Detector, height: int, width: int, proposals: int = 1000, masks: int = 0
) -> dict[str, int]:
    """Multiply-adds of the backbone with its pyramid, of the FPN and of the heads.

    RetinaNet's ``heads`` see every cell. Of Mask R-CNN only its ``rpn`` does; its ``boxes`` and
    ``masks`` cost what there is to look at: ``proposals``, and as many ``masks`` as are found.
    """
    detector = on_meta(detector).eval()  # type: ignore[assignment]
    image = torch.empty(3, height, width, device="meta")
    found: dict[str, int] = {}
    found["backbone"], maps = counted(lambda: detector.pyramid([image]))
    named = OrderedDict((str(i), level) for i, level in enumerate(maps))
    found["fpn"], features = counted(lambda: detector.fpn(named))
    levels, heads = list(features.values()), detector.heads
    if detector.framework == "retinanet":
        return found | {"heads": counted(lambda: heads.head(levels))[0]}
    found["rpn"], _ = counted(lambda: heads.rpn.head(levels))
    of = heads.roi_heads
    dim = levels[0].shape[1]
    boxes = torch.empty(proposals, dim, *of.box_roi_pool.output_size, device="meta")
    found["boxes"], _ = counted(lambda: of.box_predictor(of.box_head(boxes)))
    shapes = torch.empty(masks, dim, *of.mask_roi_pool.output_size, device="meta")
    found["masks"], _ = counted(lambda: of.mask_predictor(of.mask_head(shapes)))
    return found


def counted(run: Callable[[], Any]) -> tuple[int, Any]:
    """Multiply-adds of convolutions, linear layers and matrix products, and what came out."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        found = run()
    return counter.get_total_flops() // 2, found


def in_words(task: Detect) -> str:
    """Parameters, and multiply-adds of an image as it is tested, where the backbone takes it."""
    size = sum(parameter.numel() for parameter in task.model.parameters())
    words = f"{size / 1e6:.1f} M parameters"
    height = task.settings.short
    width = task.settings.longest or height * 4 // 3
    try:
        found = cost(task.model, height, width)
    except ValueError:  # some of timm's models take few sizes
        return words
    terms = ", ".join(f"{term} {count / 1e9:.3g}" for term, count in found.items() if count)
    total = sum(found.values()) / 1e9
    return f"{words}, {total:.1f} G multiply-adds at {height} x {width}: {terms}"
