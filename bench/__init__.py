"""Measurements against stock PyTorch. `python -m bench` runs all; nothing here is a test with a stopwatch."""
