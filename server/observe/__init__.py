"""Logs and metrics: what operators see."""
