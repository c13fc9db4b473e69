"""One file a task: head, loss, metrics."""

from ziggurat.tasks.classify import Classify
from ziggurat.tasks.detect import Detect
from ziggurat.tasks.distill import Distill
from ziggurat.tasks.generate import Generate
from ziggurat.tasks.pretrain import Pretrain
from ziggurat.tasks.segment import Segment
from ziggurat.tasks.task import Task
from ziggurat.tasks.video import Video

TASKS: dict[str, type[Task]] = {
    "classify": Classify,
    "distill": Distill,
    "pretrain": Pretrain,
    "detect": Detect,
    "segment": Segment,
    "video": Video,
    "generate": Generate,
}
