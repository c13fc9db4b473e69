"""Hierarchical vision transformers."""

__version__ = "0.1.0"
