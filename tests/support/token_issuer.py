"""An OpenID Connect issuer on a real socket, and the tokens that it signs."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
KEYS: dict[str, Any] = {"RS256": RSA_KEY, "ES256": EC_KEY, "EdDSA": ED_KEY}


def public_jwk(key: Any, algorithm: str, **fields: Any) -> dict[str, Any]:
    """The JWK of a private key's public half."""
    written = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {"kid": "k1", "use": "sig", "alg": algorithm, **written, **fields}


def sign(
    issuer: str,
    *,
    key: Any = EC_KEY,
    algorithm: str = "ES256",
    headers: dict[str, Any] | None = None,
    **claims: Any,
) -> str:
    """A token; a claim that is None is left out."""
    now = int(time.time())
    content = {
        "iss": issuer,
        "aud": "kvasir",
        "sub": "someone",
        "iat": now,
        "exp": now + 600,
        "tenant": "team-a",
        **claims,
    }
    present = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(present, key, algorithm, headers={"kid": "k1", **(headers or {})})


class TokenIssuer:
    """Answers discovery and keys as a test wants it."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: list[dict[str, Any]] = [public_jwk(EC_KEY, "ES256")]
        self.discovery: dict[str, Any] = {}
        """Members instead of the true ones."""
        self.answer: Callable[[], web.StreamResponse] | None = None
        """Makes the answer to whoever asks for keys, instead of them."""
        self.asked: list[str] = []
        self.bearers: list[str | None] = []

    def token(self, **options: Any) -> str:
        return sign(self.url, **options)

    def entry(self, **fields: Any) -> dict[str, Any]:
        """The issuer in a file."""
        tenants = [{"tenant": "team-a"}, {"tenant": "team-b", "tokens_per_day": 2000}]
        return {
            "name": "sso",
            "issuer": self.url,
            "audiences": ["kvasir"],
            "tenants": tenants,
            **fields,
        }

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/keys", self._keys)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _discovery(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        return web.json_response(
            {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.discovery}
        )

    async def _keys(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        if self.answer is not None:
            return self.answer()
        return web.Response(text=json.dumps({"keys": self.keys}))

    def _note(self, request: web.Request) -> None:
        self.asked.append(request.path)
        self.bearers.append(request.headers.get("Authorization"))


@pytest.fixture
async def token_issuer() -> AsyncIterator[TokenIssuer]:
    """An issuer that answers."""
    made = TokenIssuer()
    runner = await made.start()
    yield made
    await runner.cleanup()


@pytest.fixture
def start_with_tokens(
    start_router: Callable[..., Awaitable[Any]],
    tmp_path: Path,
    token_issuer: TokenIssuer,
    eventually: Callable[..., Awaitable[None]],
) -> Callable[..., Awaitable[Any]]:
    """start_with_tokens(models, fields, **options): a router that takes the issuer's tokens, and
    has its keys; `fields` of its entry in the file."""

    async def start(models: list[Any], fields: dict[str, Any], **options: Any) -> Any:
        path = tmp_path / "issuers.yaml"
        path.write_text(yaml.safe_dump({"issuers": [token_issuer.entry(**fields)]}))
        router = await start_router(models, issuers_file=path, **options)
        tokens = router.server.gateway.admission.tokens
        await eventually(lambda: tokens.fetches["sso", "ok"] == 1)
        return router

    return start
