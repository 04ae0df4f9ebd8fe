"""Any order of messages, ends and changes of the fleet: nothing stays in flight that is over."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.routers.gateway_stream import BUFFERED, DUPLEX, SUBSET, chat, header_map

from kvasir.wire.proto.ext_proc.v3 import external_processor_pb2 as pb
from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.replica import Health
from kvasir_router.options.picker_settings import PickerSettings
from kvasir_router.options.router_settings import QueueLimits, RouterSettings
from kvasir_router.picker.pool import Pool
from kvasir_router.picker.processing import Processing, ProcessingError
from kvasir_router.process.components import RouterComponents

pytestmark = pytest.mark.slow

HOSTS = ("10.0.0.1", "10.0.0.2")
IN_FLIGHT = 2
MODES = st.sampled_from([DUPLEX, BUFFERED])


class Stream:
    """A gateway's, and what it was told."""

    def __init__(self, gateway, mode) -> None:
        self.mode = mode
        self.told: list = []
        self.stage = "new"
        self.over = False
        """True once its answer was told of to the end."""
        self.processing = Processing(gateway, PickerSettings(), Pool(), self.told.append)

    def take(self, **parts) -> None:
        try:
            self.processing.take(pb.ProcessingRequest(**parts))
        except ProcessingError:
            self.stage = "confused"

    @property
    def endpoint(self) -> str | None:
        for each in self.told:
            if each is not None and each.HasField("dynamic_metadata"):
                told = each.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
                return str(told)
        return None

    @property
    def was_answered(self) -> bool:
        return None in self.told


def has(*stages: str) -> Any:
    """The rule is for a stream in one of these stages."""
    return precondition(lambda self: any(each.stage in stages for each in self.streams))


class PickerMachine(RuleBasedStateMachine):
    """Streams of gateways to a router of two replicas, which have little room."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.streams: list[Stream] = []
        self.asked = 0
        self.run(self._open)

    def run(self, step) -> None:
        """Take a step, and the loop's turns that it causes."""

        async def turns() -> None:
            step()
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def _open(self) -> None:
        settings = RouterSettings(
            config=Path("unused.yaml"),
            access_log=False,
            max_in_flight=IN_FLIGHT,
            waiting=QueueLimits(requests=2),
        )
        self.router = RouterComponents(settings)
        specs = tuple(ReplicaSpec(host, host, 8000) for host in HOSTS)
        self.router.apply((ModelSpec("m", replicas=specs),))
        self.gateway = self.router.gateway
        self.model = self.router.fleet.models["m"]
        self.replicas = {each.id: each for each in self.model.replicas.values()}
        for replica in self.replicas.values():
            replica.observed(Health.READY)

    def _pick(self, data, *stages) -> Stream:
        return data.draw(st.sampled_from([it for it in self.streams if it.stage in stages]))

    @rule(
        mode=MODES,
        subset=st.sampled_from([None, HOSTS[:1], HOSTS, ("10.9.9.9",), ()]),
        path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/nothing"]),
    )
    def begin(self, mode, subset, path) -> None:
        def step() -> None:
            stream = Stream(self.gateway, mode)
            self.streams.append(stream)
            names = {":method": "POST", ":path": path, ":authority": "a"}
            head = pb.HttpHeaders(headers=header_map(names))
            config = pb.ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode)
            metadata = pb.Metadata()
            if subset is not None:
                hint = metadata.filter_metadata["envoy.lb.subset_hint"]
                hint.update({SUBSET: [f"{host}:8000" for host in subset]})
            stream.stage = "head"
            stream.take(request_headers=head, protocol_config=config, metadata_context=metadata)

        self.run(step)

    @rule(mode=MODES)
    def ask(self, mode) -> None:
        """A whole request, of many that come at once."""
        self.begin(mode, None, "/v1/chat/completions")
        self._send(self.streams[-1], chat(), last=True)

    @has("head")
    @rule(data=st.data(), last=st.booleans(), known=st.booleans())
    def send_body(self, data, last, known) -> None:
        self._send(self._pick(data, "head"), chat("m" if known else "other"), last=last)

    def _send(self, stream, body, *, last) -> None:
        def step() -> None:
            if last or stream.mode == BUFFERED:
                stream.stage = "asked"
                self.asked += not stream.was_answered
            stream.take(request_body=pb.HttpBody(body=body, end_of_stream=last))

        self.run(step)

    @has("head", "asked")
    @rule(data=st.data())
    def send_trailers(self, data) -> None:
        stream = self._pick(data, "head", "asked")
        if stream.stage == "head":
            stream.stage = "asked"
            self.asked += not stream.was_answered
        self.run(lambda: stream.take(request_trailers=pb.HttpTrailers()))

    @has("asked")
    @rule(
        data=st.data(), status=st.sampled_from([200, 200, 404, 429, 500, 503]), last=st.booleans()
    )
    def answer(self, data, status, last) -> None:
        stream = self._pick(data, "asked")
        stream.stage = "answered"
        stream.over |= last
        names = header_map({":status": str(status), "content-type": "application/json"})
        head = pb.HttpHeaders(headers=names, end_of_stream=last)
        self.run(lambda: stream.take(response_headers=head))

    @has("answered")
    @rule(data=st.data(), last=st.booleans())
    def answer_part(self, data, last) -> None:
        stream = self._pick(data, "answered")
        stream.over |= last
        part = pb.HttpBody(body=b"{}", end_of_stream=last)
        self.run(lambda: stream.take(response_body=part))

    @has("answered")
    @rule(data=st.data())
    def answer_trailers(self, data) -> None:
        stream = self._pick(data, "answered")
        stream.over = True
        self.run(lambda: stream.take(response_trailers=pb.HttpTrailers()))

    @has("head", "asked", "answered", "confused")
    @rule(data=st.data())
    def leave(self, data) -> None:
        """The gateway breaks off, or has no more to say: at any moment."""
        stream = data.draw(st.sampled_from(self.streams))
        self.streams.remove(stream)
        self.run(stream.processing.left)

    @precondition(lambda self: len(self.streams) > 2)
    @rule(host=st.sampled_from(HOSTS), health=st.sampled_from([Health.READY, Health.DOWN]))
    def see(self, host, health) -> None:
        self.run(lambda: self.replicas[host].observed(health))

    @rule()
    def look_after_the_queue(self) -> None:
        self.run(self.gateway.queue.serve_and_expire)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def pass_a_deadline(self, data) -> None:
        stream = data.draw(st.sampled_from(self.streams))
        self.run(stream.processing._client.expire)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def stop(self, data) -> None:
        """The drain is over."""
        stream = data.draw(st.sampled_from(self.streams))
        stream.over = True
        self.run(stream.processing._client.stop)

    @invariant()
    def what_is_in_flight_is_what_gateways_have(self) -> None:
        has = [each for each in self.streams if each.endpoint and not each.over]
        for host, replica in self.replicas.items():
            mine = [each for each in has if each.endpoint == f"{host}:8000"]
            assert replica.in_flight == len(mine) <= IN_FLIGHT
            waits = [each for each in mine if each.stage != "answered"]
            assert (replica.load.credit > 0) == bool(waits)

    @invariant()
    def nobody_is_told_two_things(self) -> None:
        for stream in self.streams:
            ways = [
                each
                for each in stream.told
                if each is not None
                and (each.HasField("dynamic_metadata") or each.HasField("immediate_response"))
            ]
            assert len(ways) <= 1
            assert stream.told.count(None) <= 1

    def teardown(self) -> None:
        try:
            for stream in self.streams:
                self.run(stream.processing.left)
            self._check_nothing_is_left()
        finally:
            self.loop.run_until_complete(self.router.close())
            self.loop.close()

    def _check_nothing_is_left(self) -> None:
        for replica in self.replicas.values():
            assert (replica.in_flight, replica.load.credit) == (0, 0)
        gateway = self.gateway
        assert not gateway.clients.connections
        assert gateway.bodies.used == 0
        assert gateway.queue.waiting(self.model) == 0
        assert gateway.tasks.failures.total() == 0
        codes = [each.codes for each in self.router.metrics.models.values()]
        assert sum(each.total() for each in codes) >= self.asked


TestPicker = PickerMachine.TestCase
