"""Fewer training images of a set that has a name: ``cifar10:5000``, to study small data."""

import numpy as np
from PIL import Image

from ziggurat.data.files import place
from ziggurat.data.images import Data, Images


class Some(Images):
    """Some images of a set."""

    def __init__(self, images: Images, at: np.ndarray) -> None:
        super().__init__(images.labels[at], images.classes, images.ignored)
        self.images, self.at = images, at

    def name(self, index: int) -> str:
        """As the whole set says."""
        return self.images.name(int(self.at[index]))

    def image(self, index: int) -> Image.Image:
        """As in the whole set."""
        return self.images.image(int(self.at[index]))


def fewer(data: Data, count: int) -> Data:
    """``count`` training images, as many of each class, the same on every machine; tests stay."""
    each, left = divmod(count, len(data.classes))
    smallest = int(np.bincount(data.train.labels, minlength=len(data.classes)).min())
    if left or not 0 < each <= smallest:
        raise ValueError(
            f"{data.name}:{count} asks for {count / len(data.classes):g} training images of each "
            f"class: take a multiple of {len(data.classes)}, {smallest * len(data.classes)} at most"
        )
    labels = data.train.labels
    drawn = np.array([place(f"{data.name}/{i}") for i in range(len(labels))])
    order = np.lexsort((drawn, labels))
    first = np.searchsorted(labels[order], np.arange(len(data.classes)))
    at = np.sort(np.concatenate([order[start : start + each] for start in first]))
    return data._replace(train=Some(data.train, at), name=f"{data.name}:{count}")
