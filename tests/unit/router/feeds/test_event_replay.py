"""Replays that do not come to their end."""

import errno

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
