"""Celery tasks: read the store, call one function, write the store. Nothing else."""

from exo_celery.tasks import batches, downloads, ends, instances, jobs, placement

__all__ = ["batches", "downloads", "ends", "instances", "jobs", "placement"]
