"""Writes and reads without pause, with a client's default options, while somebody ends primaries.

Prints a line for every primary that the client sees, `primary HOST SECONDS`, and `working` once all
that was under way when it appeared is over: a driver tries an operation twice, so that one must not
meet two failovers. Stops when the script's input ends, checks that every acknowledged write is there once, and prints what it met as JSON.
"""

import json
import sys
import threading
import time

import pymongo


def watch_primary():
    """The driver's own events are up to a second late: it hands them out in batches."""
    seen, before = None, None
    while not stop.is_set():
        if before is not None and all(now > then + 1 for now, then in zip(done, before)):
            before = None
            print("working", flush=True)
        primary = client.primary
        if primary is not None and primary != seen:
            seen = primary
            print("primary", "%s:%d" % primary, time.time(), flush=True)
            before = list(done)
        time.sleep(0.001)


client = pymongo.MongoClient(sys.argv[1])
posts = client.failover.posts
stop = threading.Event()
lock = threading.Lock()
met = {"writes": 0, "reads": 0, "longest_ms": 0.0, "errors": []}
acknowledged = [set(), set()]
done = [0, 0, 0]


def repeatedly(number, kind, operation):
    while not stop.is_set():
        started = time.monotonic()
        try:
            operation()
        except Exception as error:  # Whatever it is, it is counted: there should be none.
            with lock:
                met["errors"].append(f"{kind}: {error!r}")
            time.sleep(0.1)
        with lock:
            met[kind] += 1
            done[number] += 1
            met["longest_ms"] = max(met["longest_ms"], (time.monotonic() - started) * 1000)
        time.sleep(0.001)


def writer(number):
    mine = acknowledged[number]

    def write():
        key = f"{number}-{len(mine)}"
        posts.insert_one({"_id": key})
        posts.update_one({"_id": "count"}, {"$inc": {str(number): 1}})
        mine.add(key)

    return write


posts.insert_one({"_id": "count"})
read = lambda: posts.find_one({"_id": "count"})
work = [(0, "writes", writer(0)), (1, "writes", writer(1)), (2, "reads", read)]
threads = [threading.Thread(target=repeatedly, args=item) for item in work]
threads.append(threading.Thread(target=watch_primary))
for thread in threads:
    thread.start()
while met["writes"] < 20 or met["reads"] < 20:
    time.sleep(0.01)
print("ready", flush=True)
sys.stdin.read()
stop.set()
for thread in threads:
    thread.join()

found = [post["_id"] for post in posts.find({"_id": {"$ne": "count"}})]
everything = acknowledged[0] | acknowledged[1]
count = posts.find_one({"_id": "count"})
met["lost"] = len(everything - set(found))
# What failed may be there or not; what was acknowledged was counted exactly once.
if not met["errors"]:
    met["unexpected"] = len(found) - len(everything)
    met["miscounted"] = sum(abs(count.get(str(n), 0) - len(keys)) for n, keys in enumerate(acknowledged))
print(json.dumps(met), flush=True)
