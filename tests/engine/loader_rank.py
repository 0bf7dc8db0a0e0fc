"""One rank of a loader test: run with a scenario, a folder, its rank and the number of ranks; prints JSON."""

import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from depthchart.engine.layer_store import LayerStore
from depthchart.engine.loader import LayerLoader, LoadFailed

scenario, folder, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
)
store = LayerStore(folder)
loader = LayerLoader(store, deduplicate=scenario != "every-rank-reads", timeout_s=3)
key, wait_s = "prefix", 0.0

if rank == 0 and scenario == "reader-fails":
    whole = store.read
    store.read = lambda key, layer: (
        whole(key, layer) if layer < 2 else (_ for _ in ()).throw(OSError("disk on fire"))
    )
if rank == 0 and scenario in ("reader-dies", "reader-hangs"):
    whole = store.read

    def read(key, layer):
        if layer == 2:
            if scenario == "reader-dies":
                os._exit(9)
            time.sleep(8)
        return whole(key, layer)

    store.read = read
if rank == ranks - 1 and scenario == "late-and-mismatched":
    time.sleep(1)
    key = "other"
if rank == ranks - 1 and scenario == "too-late":
    time.sleep(5)
if rank == 1 and scenario == "slow-receiver":
    wait_s = 0.15

found = {"rank": rank, "error": "", "kind": ""}
began = time.perf_counter()
layers = []
try:
    for layer in loader.load(key):
        layers.append(layer.clone())
        time.sleep(wait_s)
except LoadFailed as error:
    found |= {"error": str(error), "kind": type(error).__name__}
    found["again"] = ""
    try:
        next(iter(loader.load(key)))
    except LoadFailed as again:
        found["again"] = str(again)
found["waited_s"] = time.perf_counter() - began
found["bytes_read"] = store.bytes_read
found["events"] = [list(event) for event in loader.events]
found["sums"] = [float(layer.double().sum()) for layer in layers]
found["shapes"] = [list(layer.shape) for layer in layers]
print(json.dumps(found), flush=True)
if not found["error"] and scenario in ("one-read", "twice"):
    total = sum(float(layer.double().sum()) for layer in loader.load("other"))
    print(json.dumps({"second": total, "bytes_read": store.bytes_read}), flush=True)
torch.distributed.destroy_process_group() if not found["error"] else os._exit(0)
