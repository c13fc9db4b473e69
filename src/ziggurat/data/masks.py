"""Masks as COCO stores them: polygons, or runs of pixels column by column (RLE)."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def masks(segments: Sequence[Any], height: int, width: int) -> np.ndarray:
    """Pixels (n, H, W) of polygons and RLE as pycocotools draws them; None has none."""
    found = np.zeros((len(segments), height, width), bool)
    for i, one in enumerate(segments):
        if one is None:
            continue
        functions = mask_functions()
        try:
            if isinstance(one, dict) and list(one["size"]) != [height, width]:
                raise ValueError(f"its size is {one['size']}")
            if not isinstance(one, dict):
                runs = functions.merge(functions.frPyObjects(one, height, width))
            elif isinstance(one["counts"], str | bytes):
                runs = one
            else:
                runs = functions.frPyObjects(one, height, width)
            found[i] = functions.decode(runs)
        except (ValueError, RuntimeError, TypeError, KeyError) as error:
            reason = str(error).split("\n")[0]
            raise ValueError(
                f"segment {i} is no mask of height {height} and width {width}: {reason}"
            ) from None
    return found


def encoded(mask: np.ndarray) -> dict[str, Any]:
    """A mask (H, W) as compressed RLE, as COCO's results have it."""
    runs = mask_functions().encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": list(mask.shape), "counts": runs["counts"].decode()}


def mask_functions() -> Any:
    """COCO's own C code, as faster-coco-eval has it."""
    try:
        from faster_coco_eval.core import mask
    except ImportError:
        raise ImportError("masks need faster-coco-eval: pip install 'ziggurat[detect]'") from None
    return mask
