"""Access tokens (JWT) of OpenID Connect issuers, as credentials beside API keys."""
