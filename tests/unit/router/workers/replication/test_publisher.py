"""The index process' side of its links to workers."""

import asyncio
import os
import socket
from pathlib import Path

from kvasir_router.tasks import SupervisedTasks
from kvasir_router.workers.replication.framed_socket import FramedSocket
from kvasir_router.workers.replication.messages import Hello, encode
from kvasir_router.workers.replication.publisher import Publisher


async def test_workers_are_taken_in_after_the_task_that_does_so_was_started_again(
    tmp_path: Path, eventually
) -> None:
    tasks = SupervisedTasks()
    publisher = Publisher(tasks, lambda *_: None, lambda _: None, lambda: iter(()))
    links: list[FramedSocket] = []
    path = tmp_path / "index.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        for serving in range(1, 4):
            task = asyncio.ensure_future(publisher.serve(listener))
            link = FramedSocket(*await asyncio.wait_for(asyncio.open_unix_connection(path), 10))
            link.send(encode([Hello(os.getpid())]))
            await eventually(lambda count=serving: len(publisher.workers) == count)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
            links.append(link)
    for link in links:
        link.close()
    await tasks.stop()
