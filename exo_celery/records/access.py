"""API keys: who may ask what of a cluster from elsewhere."""

from enum import StrEnum

from exo_celery.records.base import Record


class Scope(StrEnum):
    """What a key is for: answers at once (`infer`), jobs, files and batches (`submit`), everything (`admin`)."""

    INFER = "infer"
    SUBMIT = "submit"
    ADMIN = "admin"


class AccessKey(Record):
    """An API key as it is kept: the key itself is not, only its SHA-256. 0 stands for never and for no limit."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    models: tuple[str, ...] = ()
    rate_per_minute: int = 0
    created_at: float = 0.0
    expires_at: float = 0.0
    last_used_at: float = 0.0
    revoked_at: float = 0.0

    @property
    def is_admin(self) -> bool:
        """Whether the key may ask everything and sees everybody's jobs."""
        return Scope.ADMIN in self.scopes
