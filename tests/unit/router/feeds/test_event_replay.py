"""Replays that do not come to their end."""

import asyncio
import errno
import time

import zmq

from kvasir.wire.kv_events import BlockStored
from kvasir_engine.kv.event_publisher import KVEventPublisher
from kvasir_router.feeds import event_replay as replay
from kvasir_router.feeds.event_feed import EventFeed
from kvasir_router.feeds.event_sockets import EventSockets
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.tasks import SupervisedTasks


async def test_a_replay_that_raises_has_failed_and_live_events_come(
    blocks, make_replica, eventually, monkeypatch
) -> None:
    real, raised = replay.Replay.run, []

    async def run(self: replay.Replay) -> bool:
        if not raised:
            raised.append(True)
            raise zmq.ZMQError(errno.EMFILE)
        return await real(self)

    monkeypatch.setattr(replay.Replay, "run", run)
    publisher = KVEventPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    tasks, replica = SupervisedTasks(), make_replica()
    sockets = EventSockets(FleetSecrets(None), tasks)
    feed = EventFeed(replica, publisher.endpoint, publisher.replay_endpoint, blocks, sockets)
    await eventually(lambda: bool(raised) and feed._replay is None)
    block = b"1" * 16
    publisher.publish([BlockStored([block], None, list(range(16)), 16)])
    await eventually(lambda: blocks.held == {block})
    assert replica.feeds["kv_replays_failed"] == 1
    assert tasks.failures == {"replay": 1}
    feed.close()
    sockets.close()
    publisher.close()


async def test_time_in_which_the_process_stood_still_fails_no_replay(
    blocks, make_replica, eventually, monkeypatch
) -> None:
    monkeypatch.setattr(replay, "IDLE_SECONDS", 0.5)
    tasks, replica = SupervisedTasks(), make_replica()
    sockets = EventSockets(FleetSecrets(None), tasks)
    publisher = KVEventPublisher("tcp://127.0.0.1:*", None)
    context = zmq.Context()
    with context.socket(zmq.ROUTER) as engine:
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        feed = EventFeed(replica, publisher.endpoint, f"tcp://127.0.0.1:{port}", blocks, sockets)
        await eventually(lambda: engine.poll(0))
        peer, *_ = engine.recv_multipart()
        time.sleep(1.0)  # noqa: ASYNC251 - the loop is what stands still
        await asyncio.sleep(0.1)
        end = (-1).to_bytes(8, "big", signed=True)
        engine.send_multipart([peer, b"", end, b""])
        await eventually(lambda: feed._replay is None)
    assert not replica.feeds["kv_replays_failed"]
    feed.close()
    sockets.close()
    publisher.close()
    context.destroy(linger=0)
