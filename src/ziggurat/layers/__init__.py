"""What two or more families share; nothing here knows a model."""
