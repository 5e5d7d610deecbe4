"""A whole cluster on this machine: the supervisor of `exo-celery up`, its embedded server, the demo."""
