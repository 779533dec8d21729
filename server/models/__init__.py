"""Models: what exists, where it comes from, and what the engine loads for it."""
