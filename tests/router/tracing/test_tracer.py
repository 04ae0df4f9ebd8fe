"""A request's span, from client to collector."""


async def test_a_request_has_a_span_whose_id_reaches_the_engine(
    start_replica, start_router, model_entry, client, collector
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)], otlp_endpoint=collector.url)
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    await client.post(f"{router.url}/v1/x", json={"model": "m"}, headers=headers)
    await router.server.stop()
    [span] = collector.spans
    assert (span["traceId"], span["parentSpanId"]) == (trace, parent)
    assert replica.requests[0].header("traceparent") == f"00-{trace}-{span['spanId']}-01"
    attributes = {each["key"]: each["value"] for each in span["attributes"]}
    assert attributes["gen_ai.request.model"] == {"stringValue": "m"}
    assert attributes["kvasir.replica"] == {"stringValue": "r0"}
    assert attributes["http.response.status_code"] == {"intValue": "200"}
    assert span["name"] == "POST /v1/x"


async def test_a_failed_request_is_an_error(start_router, model_entry, client, collector) -> None:
    router = await start_router([model_entry("m")], otlp_endpoint=collector.url)
    await client.post(f"{router.url}/v1/x", json={"model": "m"})
    await router.server.stop()
    [span] = collector.spans
    assert span["status"] == {"code": 2}


async def test_without_an_endpoint_the_header_passes_unchanged(
    start_replica, start_router, model_entry, client
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica)])
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    await client.post(f"{router.url}/v1/x", json={"model": "m"}, headers=headers)
    assert replica.requests[0].header("traceparent") == headers["traceparent"]
