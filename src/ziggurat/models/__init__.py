"""The five families, one file a paper; nothing here knows a task."""

import timm  # noqa: F401  first of all: behind it our variants are registered, see ziggurat/__init__
