"""What gateways are told and tell beyond one endpoint: further ones, waits, addresses."""

from types import SimpleNamespace

import pytest
from support.routers.gateway_stream import (
    BUFFERED,
    DUPLEX,
    changed_headers,
    chat,
    destination,
)

from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.options.proxy_settings import ProxySettings
from kvasir_router.options.router_settings import QueueLimits
from kvasir_router.wire.forwarding.client_address import parse_networks

pytestmark = pytest.mark.slow


def address(replica) -> str:
    return f"127.0.0.1:{replica.port}"


@pytest.fixture
def logged(monkeypatch):
    """Have a router write its access log into the list that this returns."""

    def log(router) -> list:
        written: list = []
        log = SimpleNamespace(write=written.append)
        gateway = router.server.gateway
        monkeypatch.setattr(gateway, "access_log", log)
        monkeypatch.setattr(gateway._relay_services.accounting, "_access_log", log)
        return written

    return log


# Several endpoints


async def test_by_default_a_gateway_is_told_one_endpoint(start_picker, gateway) -> None:
    router, replicas = await start_picker(3)
    reply = await (await gateway(router)).ask()
    assert destination(reply) in map(address, replicas)


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
async def test_further_endpoints_follow_in_the_policys_order(start_picker, gateway, mode) -> None:
    picker = PickerSettings(endpoints=3)
    router, replicas = await start_picker(4, picker=picker, policy="least_load")
    busiest, *others = (router.replica("m", f"r{at}") for at in range(4))
    for replica in (others[1], others[1], busiest, busiest, busiest, others[2]):
        replica.acquire()
    reply = await (await gateway(router, mode)).ask()
    first, *rest = destination(reply).split(",")
    assert first == address(replicas[1])
    assert rest == [address(replicas[3]), address(replicas[2])]
    assert router.replica("m", "r1").in_flight == 1  # at the first alone it counts


async def test_a_subset_bounds_the_list(start_picker, gateway) -> None:
    router, replicas = await start_picker(3, picker=PickerSettings(endpoints=16))
    subset = [address(replicas[0]), address(replicas[2])]
    reply = await (await gateway(router)).ask(subset=subset)
    assert sorted(destination(reply).split(",")) == sorted(subset)


async def test_what_is_counted_moves_to_the_endpoint_that_has_answered(
    start_picker, gateway, logged
) -> None:
    router, replicas = await start_picker(2, picker=PickerSettings(endpoints=2))
    written = logged(router)
    stream = await gateway(router)
    first, second = destination(await stream.ask()).split(",")
    await stream.given_back()
    ids = {address(replica): f"r{at}" for at, replica in enumerate(replicas)}
    await stream.answer(served=second)
    assert router.replica("m", ids[first]).in_flight == 0
    assert router.replica("m", ids[second]).in_flight == 1
    usage = b'{"usage": {"prompt_tokens": 3, "completion_tokens": 2}}'
    await stream.answer_body(usage)
    await stream.end()
    assert router.in_flight() == 0
    [record] = written
    assert (record.replica, record.status) == (ids[second], 200)
    assert router.replica("m", ids[second]).served == 1


@pytest.mark.parametrize("served", ["192.0.2.1:80", "", "nonsense"])
async def test_an_endpoint_that_is_none_changes_nothing(start_picker, gateway, served) -> None:
    router, _ = await start_picker(picker=PickerSettings(endpoints=2))
    stream = await gateway(router)
    await stream.ask()
    await stream.given_back()
    await stream.answer(served=served)
    assert router.replica("m", "r0").in_flight == 1
    await stream.answer_body(b"{}")
    assert router.in_flight() == 0


# Waits


async def test_a_buffered_request_that_waits_asks_for_time_once(start_picker, gateway) -> None:
    waiting = QueueLimits(timeout=20.0, hold=40.5)
    router, _ = await start_picker(waiting=waiting, max_in_flight=1)
    first = await gateway(router, BUFFERED)
    await first.ask()
    second = await gateway(router, BUFFERED)
    told = await second.ask()
    assert told.WhichOneof("response") is None
    assert told.override_message_timeout.seconds == 42  # the longer wait, and a second
    assert not told.HasField("dynamic_metadata")
    first.call.cancel()
    reply = await second.receive()
    assert reply.WhichOneof("response") == "request_body"
    assert destination(reply)


async def test_in_full_duplex_gateways_wait_by_themselves(start_picker, gateway) -> None:
    router, _ = await start_picker(max_in_flight=1, waiting=QueueLimits(requests=4))
    first = await gateway(router)
    await first.ask()
    second = await gateway(router)
    await second.head()
    await second.body(chat())
    first.call.cancel()
    reply = await second.receive()
    assert reply.WhichOneof("response") == "request_headers"


async def test_what_is_refused_at_once_asks_for_no_time(start_picker, gateway) -> None:
    waiting = QueueLimits(requests=0)
    router, _ = await start_picker(waiting=waiting, max_in_flight=1)
    first = await gateway(router, BUFFERED)
    await first.ask()
    reply = await (await gateway(router, BUFFERED)).ask()
    assert reply.immediate_response.status.code == 429


# Addresses


async def test_the_access_log_has_the_client_behind_the_gateway(
    start_picker, gateway, logged
) -> None:
    proxies = ProxySettings(trusted=parse_networks(["127.0.0.1"]))
    router, _ = await start_picker(proxies=proxies)
    written = logged(router)
    for head in (
        {"source": "192.0.2.1:4711"},
        {"headers": {"x-forwarded-for": "192.0.2.2"}},
        {"source": "127.0.0.1:1", "headers": {"x-forwarded-for": "6.6.6.6, 192.0.2.3"}},
    ):
        stream = await gateway(router)
        await stream.ask(chat("unknown"), **head)
    assert [record.client for record in written] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    bad = await (await gateway(router)).ask(headers={"x-forwarded-for": "somebody"})
    assert bad.immediate_response.status.code == 400
    assert b"X-Forwarded-For" in bad.immediate_response.body


async def test_of_a_gateway_that_is_not_trusted_the_header_is_not_believed(
    start_picker, gateway, logged
) -> None:
    router, _ = await start_picker()
    written = logged(router)
    headers = {"x-forwarded-for": "192.0.2.2"}
    stream = await gateway(router)
    await stream.ask(chat("unknown"), headers=headers)
    good = await gateway(router)
    reply = await good.ask(headers=headers, source="192.0.2.9:1")
    assert "x-forwarded-for" not in changed_headers(reply)
    good.call.cancel()
    assert written[0].client == ""
