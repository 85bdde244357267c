"""A server of our own: one process with a table, asked over a unix socket."""

from __future__ import annotations

import contextlib
import multiprocessing
import selectors
import socket
import struct
from collections.abc import Iterator

from benchmarks.peers.peer import FIRST, GONE, Peer, Triple

REQUEST = struct.Struct("q3q")  # index and triple; index -1 reads
ANSWER = struct.Struct("3q")


def serve(path: str, members: int, ready: object) -> None:
    table = [FIRST] * members
    buffers: dict[socket.socket, bytes] = {}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(256)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        ready.set()  # type: ignore[attr-defined]
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    selector.register(client, selectors.EVENT_READ)
                    buffers[client] = b""
                    continue
                client = key.fileobj  # type: ignore[assignment]
                data = client.recv(4096)
                if not data:
                    selector.unregister(client)
                    client.close()
                    continue
                buffers[client] += data
                while len(buffers[client]) >= REQUEST.size:
                    index, *triple = REQUEST.unpack_from(buffers[client])
                    buffers[client] = buffers[client][REQUEST.size :]
                    if index >= 0:
                        table[index] = tuple(triple)  # type: ignore[assignment]
                    sums = map(sum, zip(*table, strict=True)) if index < 0 else GONE
                    client.sendall(ANSWER.pack(*sums))


class SocketServer(Peer):
    name = "socket to a server"

    @contextlib.contextmanager
    def prepared(self, members: int) -> Iterator[list[int]]:
        self.path = f"{self.directory}/server.sock"
        spawn = multiprocessing.get_context("spawn")
        ready = spawn.Event()
        process = spawn.Process(target=serve, args=(self.path, members, ready), daemon=True)
        process.start()
        try:
            assert ready.wait(60)
            yield [process.pid or 0]
        finally:
            process.kill()
            process.join()

    def attach(self, me: int) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(self.path)
        self.me = me

    def ask(self, *numbers: int) -> Triple:
        self.connection.sendall(REQUEST.pack(*numbers))
        answer = self.connection.recv(ANSWER.size)
        if not answer:
            raise ConnectionResetError("the server has gone")
        found: Triple = ANSWER.unpack(answer)
        return found

    def publish(self, held: int, releasable: int, pinned: int) -> None:
        self.ask(self.me, held, releasable, pinned)

    def read(self) -> Triple:
        return self.ask(-1, 0, 0, 0)

    def enter(self, triple: Triple) -> None:
        self.connection.sendall(REQUEST.pack(self.me, *triple)[:16])
