"""What two or more families share; nothing here knows a model."""

import timm  # noqa: F401  first of all: behind it our variants are registered, see ziggurat/__init__
