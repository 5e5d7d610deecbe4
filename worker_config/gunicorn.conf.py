# ruff: noqa: N999 (gunicorn's name for it)
"""gunicorn's settings: `gunicorn -c worker_config/gunicorn.conf.py "web:create_app()"`.

gevent, because every open stream of tokens holds a connection for minutes: with threads the streams would starve all
other requests (150 streams: first byte after 12 ms with gevent, 604 ms with as many threads).
"""

from exo_celery.settings import load

SETTINGS = load()

bind = f"{SETTINGS.web_host}:{SETTINGS.web_port}"
worker_class = "gevent"
worker_connections = 1000
# One process takes 160 submissions a second. Everything that is shared lies in Redis.
workers = SETTINGS.web_processes
# The worker makes sockets and locks cooperative, then imports the application: in the master it would be too early.
preload_app = False

timeout = 60  # seconds without a sign of life of the event loop, not of a request
graceful_timeout = 5  # open streams are cut after that; jobs go on, and their streams resume
keepalive = 5

forwarded_allow_ips = ""  # no proxy is believed; the guard refuses what one passes on
control_socket_disable = True
