"""Routers that are endpoint pickers, and gateways that ask them."""

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from support.routers.gateway_stream import DUPLEX, GatewayStream, gateway_channel

from kvasir_router.options.picker_settings import PickerSettings


@pytest.fixture
def start_picker(start_replica, start_router, model_entry):
    """start_picker(count, **options): a router that picks among replicas of the model `m`."""

    async def start(count=1, picker=None, **options):
        replicas = [await start_replica() for _ in range(count)]
        settings = replace(picker or PickerSettings(), port=0)
        models = options.pop("models", None) or [model_entry("m", *replicas, aliases=["alias"])]
        return await start_router(models, picker=settings, **options), replicas

    return start


@pytest.fixture
async def gateway():
    """gateway(router, mode): a stream of a gateway's to the router."""
    async with AsyncExitStack() as stack:
        channels = {}

        async def ask(router, mode=DUPLEX, credentials=None):
            port = router.server.picker.port
            if port not in channels:
                made = gateway_channel(port, credentials)
                channels[port] = await stack.enter_async_context(made)
            return GatewayStream(channels[port], mode)

        yield ask
