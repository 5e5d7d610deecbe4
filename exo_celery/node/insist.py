"""Writing what must be written: again and again until Redis answers, or the node stops."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from exo_celery.store.client import RedisError

log = logging.getLogger(__name__)
PAUSE_SECONDS: Final = 1.0


def insist(action: Callable[[], object], stopping: threading.Event) -> None:
    """Do something in Redis until it succeeds; once `stopping` is set one try must do."""
    while True:
        try:
            action()
        except RedisError as error:
            log.warning("Redis does not answer, trying again: %s", error)
            if stopping.wait(PAUSE_SECONDS):
                return
        else:
            return
