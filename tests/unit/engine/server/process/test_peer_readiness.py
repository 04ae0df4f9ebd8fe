"""All API processes are there before one of them says so."""

from pathlib import Path

import pytest

from kvasir_engine.server.process.peer_readiness import PeerReadiness


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_it_is_complete_when_the_last_one_is_here(tmp_path: Path, order) -> None:
    peers = [PeerReadiness(tmp_path, index, 3) for index in range(3)]
    for index in order:
        assert not any(peer.all_ready for peer in peers)
        peers[index].mark_ready()
    assert all(peer.all_ready for peer in peers)


def test_one_alone_is_complete_at_once(tmp_path: Path) -> None:
    peer = PeerReadiness(tmp_path, 0, 1)
    assert not peer.all_ready
    peer.mark_ready()
    assert peer.all_ready
