"""exo_celery: one language model on a ring of Celery workers, durable jobs, and a placement that explains itself."""
