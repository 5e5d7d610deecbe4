"""Celery tasks: read the store, call one function, write the store. Nothing else."""
