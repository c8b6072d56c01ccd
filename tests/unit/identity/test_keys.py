"""Which keys of a set may check a token."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from memory_service.errors import Unavailable
from memory_service.identity.keys import parse_keys
from tests.fakes.kube_api import SigningKey, make_key

RSA = make_key("RS256", "rsa")
EC = make_key("ES256", "ec")


def jwk(key: SigningKey, **changed: Any) -> dict[str, Any]:
    return {name: value for name, value in {**key.public_jwk, **changed}.items() if value is not None}


def algorithms(*entries: Any) -> list[tuple[str, ...]]:
    return [key.algorithms for key in parse_keys({"keys": list(entries)})]


def test_a_key_checks_its_own_algorithm_or_those_of_its_kind() -> None:
    assert algorithms(jwk(RSA), jwk(RSA, alg=None), jwk(EC), jwk(EC, alg=None)) == [
        ("RS256",),
        ("RS256", "PS256"),
        ("ES256",),
        ("ES256",),
    ]


def test_a_key_for_anything_else_is_left_out() -> None:
    small = SigningKey("small", "RS256", rsa.generate_private_key(public_exponent=65_537, key_size=1_024))
    other_curve = SigningKey("p384", "ES384", ec.generate_private_key(ec.SECP384R1()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (
            algorithms(
                jwk(RSA, use="enc"),
                jwk(RSA, alg="RS512"),
                jwk(RSA, alg="HS256"),
                jwk(RSA, kid=7),
                jwk(RSA, n=None),
                jwk(RSA, n="*"),
                jwk(EC, crv="P-384"),
                jwk(EC, x=None),
                jwk(other_curve),
                jwk(small),
                {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256", "kid": "x"},
                {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
                "text",
                None,
            )
            == []
        )


@pytest.mark.parametrize("document", [None, [], "text", {}, {"keys": {}}, {"keys": None}])
def test_what_is_not_a_key_set_is_no_answer(document: object) -> None:
    with pytest.raises(Unavailable):
        parse_keys(document)
