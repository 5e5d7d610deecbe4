"""A process that does nothing but a node's downloads, to be killed: `node_process.py SETTINGS_JSON NODE_ID`.

It says at which port it serves peers once it has reported.
"""

import sys
import threading

from exo_celery.node.downloads import Downloads
from exo_celery.settings import Settings
from exo_celery.store.client import connect


def main() -> None:
    settings = Settings.model_validate_json(sys.argv[1])
    downloads = Downloads(settings, connect(settings), sys.argv[2], lambda model: None)
    downloads.report()
    downloads.work_off()
    sys.stdout.write(f"booted {downloads.peering.port}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
