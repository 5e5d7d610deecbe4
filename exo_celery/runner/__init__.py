"""Runners: a child process per shard. process.py and protocol.py are the parent side and never import MLX; the rest is the child."""
