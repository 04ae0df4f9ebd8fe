"""An issuer of access tokens."""

import pytest
from support.token_issuer import TokenIssuer


@pytest.fixture
async def token_issuer():
    made = TokenIssuer()
    runner = await made.start()
    yield made
    await runner.cleanup()
