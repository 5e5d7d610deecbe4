"""Records: frozen pydantic models of what is stored and decided. No IO, no clock, no Celery."""
