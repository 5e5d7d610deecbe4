"""Runners: a child process per shard.

protocol.py, process.py and client.py are the parent side and never import MLX; the rest runs in the child.
"""
