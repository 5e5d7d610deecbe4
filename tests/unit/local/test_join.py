"""The sealed secret of an invitation: only its code opens it, and changes show."""

import pytest

from exo_celery.errors import ConfigurationError
from exo_celery.local import join

SECRET = "s" * 64


def test_the_code_opens_what_it_sealed_and_nothing_shows_the_secret() -> None:
    sealed = join.seal(SECRET, "code")
    assert join.unseal(sealed, "code") == SECRET
    assert SECRET.encode().hex() not in sealed
    assert join.seal(SECRET, "code") != sealed  # a pad is used once
    assert "code" not in join.name_of("code")


@pytest.mark.parametrize("code", ["Code", "", "code "])
def test_another_code_does_not(code: str) -> None:
    with pytest.raises(ConfigurationError, match="tampered"):
        join.unseal(join.seal(SECRET, "code"), code)


def test_a_changed_byte_shows() -> None:
    raw = bytearray.fromhex(join.seal(SECRET, "code"))
    raw[20] ^= 1
    with pytest.raises(ConfigurationError, match="tampered"):
        join.unseal(raw.hex(), "code")
