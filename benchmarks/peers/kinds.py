"""All peers, in the order of the table."""

from benchmarks.peers.drivers import Nvml, Psutil
from benchmarks.peers.flock_json import FlockJson
from benchmarks.peers.lmdb_peer import Lmdb
from benchmarks.peers.manager import ManagerDict
from benchmarks.peers.memledgers import Figures, Free, Unchanged
from benchmarks.peers.peer import Peer
from benchmarks.peers.prometheus import Prometheus
from benchmarks.peers.redis_peer import Redis
from benchmarks.peers.seqlock import Seqlock
from benchmarks.peers.shared_memory import SharedMemory
from benchmarks.peers.socket_server import SocketServer
from benchmarks.peers.sqlite import Sqlite

PEERS: tuple[type[Peer], ...] = (
    Unchanged, Free, Figures, Seqlock, SharedMemory, Lmdb, Sqlite, FlockJson, SocketServer,
    ManagerDict, Redis, Prometheus, Psutil, Nvml,
)  # fmt: skip
