"""JWTs of an identity provider (RFC 7519): who signs in with one, until when, and with which rights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jwt

from protocol.errors import excerpt
from server.access.auth import User, account_id, unauthorized
from server.access.jwks import ALGORITHMS, Jwks, VerifyingKey
from server.access.limits import own_limits
from server.config import JwtConfig

MAX_TOKEN_CHARS: Final = 16_384  # as in `session.update`
MAX_NAME_CHARS: Final = 256
SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
PUBLIC_ALGORITHMS: Final = tuple(name for names in ALGORITHMS.values() for name in names)

# What is wrong with a token, said to who sent it.
_FAULTS: Final[dict[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "the token has expired; get a new one",
    jwt.ImmatureSignatureError: "the token is not valid yet",
    jwt.InvalidAudienceError: "the token is for another audience",
    jwt.InvalidIssuerError: "the token is of another issuer",
    jwt.InvalidSignatureError: "the token's signature is wrong",
    jwt.InvalidAlgorithmError: "the token is signed with an algorithm that is not accepted",
}


class Tokens:
    """Verifies tokens as `[auth.jwt]` says.

    One kind of key is configured, and it decides which algorithms count, so that no public key is ever taken for a
    secret. Raises OSError and ValueError where the public key's file cannot be used.
    """

    def __init__(self, config: JwtConfig, jwks: Jwks | None = None) -> None:
        self._config = config
        self._jwks = jwks
        self._key: VerifyingKey | None = None
        if config.jwks_url:
            self._jwks = jwks or Jwks(config.jwks_url, config.jwks_ttl_s)
        elif config.public_key_file:
            self._key = _read_key(Path(config.public_key_file))
        else:
            self._key = VerifyingKey(config.secret.get_secret_value(), SECRET_ALGORITHMS)

    async def verify(self, token: str) -> User:
        """Return who signs in with a token. Raises ProtocolError."""
        if len(token) > MAX_TOKEN_CHARS:
            raise unauthorized("this is too long for a token")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise unauthorized("this is neither a key of this server nor a token") from None
        key = self._key or await self._find(header)
        config = self._config
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=config.audience or None,
                issuer=config.issuer or None,
                leeway=config.leeway_s,
                options={
                    "require": ["exp"],
                    "verify_aud": bool(config.audience),
                    "verify_sub": False,  # the account's claim is checked below, whichever it is
                    "enforce_minimum_key_length": True,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise unauthorized(_FAULTS.get(type(error), "the token cannot be verified")) from None
        try:
            return self._user(claims)
        except (UnicodeError, OverflowError):  # half a character in a name, a time beyond all times
            raise unauthorized("the token has a claim that cannot be used") from None

    async def _find(self, header: Mapping[str, Any]) -> VerifyingKey:
        assert self._jwks is not None
        key_id = header.get("kid")
        key = await self._jwks.find(key_id if isinstance(key_id, str) else None)
        if key is None:
            raise unauthorized("the token is signed with a key that the identity provider does not publish")
        return key

    def _user(self, claims: Mapping[str, Any]) -> User:
        config = self._config
        name = _name(claims, config.user_claim)
        if not name:
            raise unauthorized(f"the token has no claim '{config.user_claim}'")
        return User(
            account_id(name, _name(claims, config.tenant_claim)),
            _rights(claims, config.rights_claim),
            expires_at=float(claims["exp"]) + config.leeway_s,
            limits=_limits(claims, config.limits_claim),
        )


def _read_key(file: Path) -> VerifyingKey:
    """Return a PEM file's key. Raises OSError, and ValueError where it holds none."""
    text = file.read_text("utf-8")
    algorithms = [name for name in PUBLIC_ALGORITHMS if _fits(text, name)]
    if not algorithms:
        raise ValueError(f"{file} holds no public key in PEM (RSA, EC or Ed25519)")
    return VerifyingKey(text, algorithms)


def _fits(key: str, algorithm: str) -> bool:
    try:
        jwt.get_algorithm_by_name(algorithm).prepare_key(key)
    except (jwt.PyJWTError, ValueError, TypeError):
        return False
    return True


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return a claim by its name, or else by a path with dots (`realm_access.roles`); None where there is none."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _name(claims: Mapping[str, Any], path: str) -> str:
    value = claim(claims, path)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
        raise unauthorized(f"the token's claim '{path}' must be a string of at most {MAX_NAME_CHARS} characters")
    return value


def _limits(claims: Mapping[str, Any], path: str) -> tuple[tuple[str, int], ...]:
    value = claim(claims, path)
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise unauthorized(f"the token's claim '{path}' must be an object of limits")
    try:
        return own_limits(value)
    except ValueError as error:
        raise unauthorized(f"the token's claim '{path}': {error}") from None


def _rights(claims: Mapping[str, Any], path: str) -> frozenset[str]:
    """Return the names in a list, or in a string with spaces between (as in `scope`, RFC 8693 section 4.2).

    Raises ProtocolError, UnicodeError.
    """
    value = claim(claims, path)
    names = value.split() if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise unauthorized(f"the token's claim '{path}' must be a list of strings, not {excerpt(repr(value), 60)}")
    for name in names:
        name.encode()  # half a character could be shown to nobody
    return frozenset(names)
