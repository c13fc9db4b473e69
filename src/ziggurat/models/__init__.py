"""The five families, one file a paper; nothing here knows a task."""
