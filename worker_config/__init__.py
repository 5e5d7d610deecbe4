"""How the processes are set up: Celery's settings, gunicorn's, examples for nodes and service managers."""
