"""The part that lives inside the training process: standard library and _native only."""
