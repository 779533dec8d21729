"""Inference behind one contract (`base.Engine`), whatever makes the tokens."""
