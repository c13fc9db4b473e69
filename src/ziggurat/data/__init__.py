"""Files on disk to batches; knows no model and no task."""
