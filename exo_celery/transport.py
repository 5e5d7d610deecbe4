"""Redis as a broker that may die: a popped message is consumed, nothing about it is kept on the server.

kombu writes every message that is not acked yet into Redis, removes it when it is, and restores what is
left over. When the server goes away in between, that removal fails inside the worker's event loop and ends
the worker; the visibility timeout of the same bookkeeping runs long tasks twice. Here it stays in memory,
and what is lost with a worker comes back through our own records (leases, heartbeats, epochs).

Set by `broker_transport = "exo_celery.transport:Transport"`. kombu is pinned;
`tests/integration/test_storm.py` is the proof.
"""

from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual


class QoS(kombu_redis.QoS):
    """Count the messages a channel has out, in this process only."""

    restore_at_shutdown = False

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a delivered message, without telling Redis."""
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Forget a message."""
        virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Forget a message; whoever wants it back has a record to send it from."""
        virtual.QoS.ack(self, delivery_tag)

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Restore nothing: there is no visibility timeout."""

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Restore nothing when the channel closes; only drop the finalizer that would ask again at exit."""
        self._on_collect.cancel()


class Channel(kombu_redis.Channel):
    """A Redis channel that counts in memory, and publishes through one client: kombu makes one for each message."""

    QoS = QoS
    publisher: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[no-untyped-call]
        if self.publisher is None or self.publisher.connection_pool is not self.pool:  # that of a lost connection goes
            self.publisher = super()._create_client()  # type: ignore[no-untyped-call]
        return self.publisher


class Transport(kombu_redis.Transport):
    """kombu's Redis transport with that channel."""

    Channel = Channel
