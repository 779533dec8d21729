"""Tokens: what is taken, what is refused, and what they say."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from server.access.jwks import Jwks
from server.access.tokens import Tokens
from server.config import JwtConfig
from tests.support.credentials import Provider, full

SECRET = "s" * 64
RSA, EC = Provider("RS256", "rsa"), Provider("ES256", "ec")


def pem(provider: Provider) -> bytes:
    return bytes(
        provider.public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def with_secret(**settings: Any) -> Tokens:
    return Tokens(JwtConfig.model_validate({"secret": SECRET, **settings}))


def with_jwks(*providers: Provider, **settings: Any) -> Tokens:
    config = JwtConfig.model_validate({"jwks_url": "https://id.example/keys", **settings})
    return Tokens(config, publishing(config, *(provider.jwk() for provider in providers)))


def publishing(config: JwtConfig, *keys: dict[str, Any]) -> Jwks:
    async def fetch(_url: str) -> Any:
        return {"keys": list(keys)}

    return Jwks(config.jwks_url, 300, fetch=fetch)


def with_secret_signed(algorithm: str = "HS256", /, **claims: Any) -> str:
    return jwt.encode(full(claims), SECRET, algorithm)


async def refused(tokens: Tokens, token: str) -> str:
    with pytest.raises(ProtocolError) as caught:
        await tokens.verify(token)
    assert caught.value.code == "unauthorized"
    return caught.value.message


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_secret(algorithm):
    """Tokens that share our secret sign in."""
    assert (await with_secret().verify(with_secret_signed(algorithm))).id == "ann"


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256"])
async def test_published_keys(algorithm):
    """Each of a provider's keys counts, with every algorithm that it can do."""
    provider = EC if algorithm == "ES256" else RSA
    assert (await with_jwks(RSA, EC).verify(provider.sign(algorithm))).id == "ann"


async def test_a_public_key_file(tmp_path: Path):
    """A provider's key in a file, RSA or EC."""
    for provider in (RSA, EC):
        file = tmp_path / "key.pem"
        file.write_bytes(pem(provider))
        tokens = Tokens(JwtConfig(public_key_file=str(file)))
        assert (await tokens.verify(provider.sign())).id == "ann"
        assert "signature is wrong" in await refused(tokens, Provider(provider.kind, provider.key_id).sign())


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", SECRET])
def test_a_file_without_a_key(text, tmp_path: Path):
    """It is said at the start, not to each client."""
    file = tmp_path / "key.pem"
    file.write_text(text)
    with pytest.raises(ValueError, match="holds no public key in PEM"):
        Tokens(JwtConfig(public_key_file=str(file)))


async def test_the_time_of_a_token_is_the_sign_ins(tmp_path: Path):
    """With the leeway that clocks may differ by."""
    until = int(time.time()) + 60
    assert (await with_secret(leeway_s=5).verify(with_secret_signed(exp=until))).expires_at == until + 5


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, "cannot be verified"),
        ({"exp": "soon"}, "cannot be verified"),
        ({"nbf": 9_999_999_999}, "not valid yet"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "cannot be verified"),
        ({"aud": "others"}, "another audience"),
        ({"aud": None}, "cannot be verified"),
        ({"sub": None}, "no claim 'sub'"),
        ({"sub": ""}, "no claim 'sub'"),
        ({"sub": 7}, "claim 'sub' must be a string"),
        ({"sub": "x" * 257}, "claim 'sub' must be a string"),
        ({"tenant": ["acme"]}, "claim 'tenant' must be a string"),
        ({"rights": {"admin": True}}, "claim 'rights' must be a list"),
        ({"rights": ["admin", 1]}, "claim 'rights' must be a list"),
        ({"sub": "\ud800"}, "a claim that cannot be used"),
        ({"tenant": "\ud800"}, "a claim that cannot be used"),
        ({"rights": ["\ud800"]}, "a claim that cannot be used"),
        ({"exp": 10**400}, "a claim that cannot be used"),
        ({"limits": {"connections": 2**60}}, "more than"),
    ],
)
async def test_what_a_token_must_say(claims, what):
    """A good signature is not enough."""
    tokens = with_secret(issuer="https://id.example", audience="chat")
    good = {"iss": "https://id.example", "aud": ["chat", "mail"]}
    await tokens.verify(with_secret_signed(**good))
    assert what in await refused(tokens, with_secret_signed(**{**good, **claims}))


@pytest.mark.parametrize(
    ("claims", "rights"),
    [
        ({}, set()),
        ({"rights": "instructions big-models"}, {"instructions", "big-models"}),
        ({"rights": ["admin"]}, {"admin"}),
        ({"rights": ""}, set()),
    ],
)
async def test_rights(claims, rights):
    """A list, or a string with spaces between."""
    assert (await with_secret().verify(with_secret_signed(**claims))).rights == rights


async def test_claims_of_other_names():
    """Whatever the provider calls them, also within objects, also with dots in their names."""
    tokens = with_secret(user_claim="email", tenant_claim="https://x.example/org", rights_claim="realm.roles")
    claims = {"email": "ann@x.example", "https://x.example/org": "acme", "realm": {"roles": ["admin"]}}
    user = await tokens.verify(with_secret_signed(**claims))
    assert (user.id, user.tenant, set(user.rights)) == ("acme/ann@x.example", "acme", {"admin"})


async def test_no_public_key_is_taken_for_a_secret():
    """Nor does a token choose how it is verified: `none`, and HS256 with the public key, are the classic forgeries."""
    unsigned = jwt.encode(full({}), "", "none", headers={"kid": "rsa"})
    header, payload, _ = unsigned.split(".")
    forged = jwt.api_jws.PyJWS().encode(b"{}", SECRET, "HS256", headers={"kid": "rsa"})
    for token in (unsigned, f"{header}.{payload}.", forged, with_secret_signed()):
        await refused(with_jwks(RSA), token)
        await refused(with_jwks(EC), token)
    await refused(with_secret(), unsigned)
    await refused(with_secret(), RSA.sign())


async def test_a_key_is_used_for_what_it_was_published_for(tmp_path: Path):
    """A key for encryption signs nobody in, nor one of another algorithm, nor one without its id among several."""
    for fields in ({"use": "enc"}, {"alg": "RS512"}):
        config = JwtConfig(jwks_url="https://id.example/keys")
        tokens = Tokens(config, publishing(config, RSA.jwk(**fields), EC.jwk()))
        await refused(tokens, RSA.sign())
    nameless = jwt.encode(full({}), RSA.private, "RS256")
    await refused(with_jwks(RSA, EC), nameless)
    await with_jwks(RSA).verify(nameless)


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]{0,20}\.[A-Za-z0-9_-]{0,20}\.[A-Za-z0-9_-]{0,20}", fullmatch=True))
async def test_whatever_is_no_token(text):
    """Is refused, and no fault of ours."""
    await refused(with_secret(), text)


async def test_a_token_of_any_length():
    """A megabyte is refused before anything is computed."""
    assert "too long" in await refused(with_secret(), "x" * 1_000_000)
