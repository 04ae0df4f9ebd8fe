"""A request's span, from client to collector."""


async def test_a_request_has_a_span_whose_id_reaches_the_engine(
    start_replica, start_router, model_entry, client, collector, values
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)], otlp_endpoint=collector.url)
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    await client.post(f"{router.url}/score", json={"model": "m"}, headers=headers)
    await router.server.stop()
    [span] = collector.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, parent)
    assert replica.requests[0].header("traceparent") == f"00-{trace}-{span.span_id.hex()}-01"
    attributes = values(span.attributes)
    assert attributes["gen_ai.request.model"] == "m"
    assert attributes["kvasir.replica"] == "r0"
    assert attributes["http.response.status_code"] == 200
    assert span.name == "POST /score"


async def test_a_failed_request_is_an_error(start_router, model_entry, client, collector) -> None:
    router = await start_router([model_entry("m")], otlp_endpoint=collector.url)
    await client.post(f"{router.url}/score", json={"model": "m"})
    await router.server.stop()
    [span] = collector.spans
    assert span.status.code == span.status.STATUS_CODE_ERROR


async def test_a_request_that_is_not_sampled_costs_no_span(
    start_replica, start_router, model_entry, client, collector
) -> None:
    replica = await start_replica()
    router = await start_router(
        [model_entry("m", replica)], otlp_endpoint=collector.url, trace_ratio=0.0
    )
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}
    for given in ({}, headers):
        await client.post(f"{router.url}/score", json={"model": "m"}, headers=given)
    assert [request.header("traceparent") for request in replica.requests] == [
        None,
        headers["traceparent"],
    ]
    assert router.server.gateway.tracer._ended._taken == 0
    await router.server.stop()
    assert collector.requests == []


async def test_without_an_endpoint_the_header_passes_unchanged(
    start_replica, start_router, model_entry, client
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    await client.post(f"{router.url}/score", json={"model": "m"}, headers=headers)
    assert replica.requests[0].header("traceparent") == headers["traceparent"]
