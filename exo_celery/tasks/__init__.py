"""Celery tasks: read the store, call one function, write the store. Nothing else."""

from exo_celery.tasks import downloads, ends, instances, jobs, placement

__all__ = ["downloads", "ends", "instances", "jobs", "placement"]
