"""Why a model says what it says: GradCAT, class activation maps, attention; nothing is trained."""

from ziggurat.explain.gradcat import Node
from ziggurat.explain.methods import METHODS, Explanation, explain, reason

__all__ = ["METHODS", "Explanation", "Node", "explain", "reason"]
