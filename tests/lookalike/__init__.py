"""Look-alikes of the outside world for the tests: tiny checkpoints, a hub that can fail."""
