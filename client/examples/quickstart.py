"""A session of one layer: appends a context of 300 tokens, asks one query, deletes the session."""

import sys

import grpc
import numpy as np
from oscarkv.v1 import kv_cache_pb2 as kv
from oscarkv.v1.kv_cache_pb2_grpc import KvCacheServiceStub


def tensor(x: np.ndarray) -> kv.Tensor:
    return kv.Tensor(dtype=kv.DATA_TYPE_FP32, shape=x.shape, raw=x.astype("<f4").tobytes())


server = KvCacheServiceStub(grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))
layer = kv.LayerSpec(query_heads=8, kv_heads=2, key_dim=64)
create = kv.CreateSessionRequest(session="quickstart-py", request_id="1", layers=[layer])
session = server.CreateSession(create).session

key, value, query = np.full((300, 2, 64), 0.5), np.full((300, 2, 64), 2), np.full((1, 8, 64), 0.1)
item = kv.Item(
    session=session.id, generation=session.generation, num_tokens=300, expected_length=0, num_query_tokens=1
)
reply = server.Attend(kv.AttendRequest(items=[item], key=tensor(key), value=tensor(value), query=tensor(query)))
output = np.frombuffer(reply.output.raw, "<f4").reshape(reply.output.shape)  # [1, 8, 64]
print(f"{reply.results[0].length} tokens, output[0] = {output.flat[0]:g}")
server.DeleteSession(kv.DeleteSessionRequest(session=session.id))
