"""One file a task: head, loss, metrics."""
