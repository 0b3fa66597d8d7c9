"""Tailable cursors of pymongo on capped collections, of a server or through a router."""

import sys
import threading
import time

import pymongo
from pymongo import CursorType

client = pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=20000)
client.drop_database("capped_py")
db = client.capped_py
log = db.create_collection("log", capped=True, size=1 << 20, max=500)
assert log.options() == {"capped": True, "size": 1 << 20, "max": 500}, log.options()

# Nothing to go on from: the cursor is closed at once.
empty = log.find(cursor_type=CursorType.TAILABLE_AWAIT)
assert list(empty) == [] and not empty.alive
absent = db.absent.find(cursor_type=CursorType.TAILABLE_AWAIT)
assert list(absent) == [] and not absent.alive
try:
    db.plain.insert_one({})
    list(db.plain.find(cursor_type=CursorType.TAILABLE))
    raise AssertionError("a collection that is not capped was tailed")
except pymongo.errors.OperationFailure as error:
    assert error.code == 2, error

log.insert_one({"_id": 0})
WRITERS, EACH = 4, 100


def write(writer):
    for n in range(EACH):
        log.insert_one({"writer": writer, "n": n})


# What several threads write at once arrives whole, and in one order.
tail = log.find(cursor_type=CursorType.TAILABLE_AWAIT)
assert tail.next() == {"_id": 0}
writers = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
for thread in writers:
    thread.start()
seen = []
deadline = time.time() + 60
while len(seen) < WRITERS * EACH and time.time() < deadline:
    assert tail.alive
    for document in tail:
        seen.append(document)
for thread in writers:
    thread.join()
assert len(seen) == WRITERS * EACH, len(seen)
for writer in range(WRITERS):
    assert [d["n"] for d in seen if d["writer"] == writer] == list(range(EACH))
assert [d["_id"] for d in log.find()] == [0] + [d["_id"] for d in seen]
assert [d["_id"] for d in log.find().sort("$natural", -1)] == [d["_id"] for d in seen][::-1] + [0]

# A getMore waits for as long as it may, and is woken by what matches.
tail = log.find({"k": {"$gte": 5}}, cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(500)
assert list(tail) == [] and tail.alive
began = time.time()
assert list(tail) == [] and tail.alive and 0.4 < time.time() - began < 5
tail = log.find({"k": {"$gte": 5}}, cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(20000)
assert list(tail) == [] and tail.alive
timers = [
    threading.Timer(0.3, lambda: log.insert_one({"k": 1})),
    threading.Timer(0.6, lambda: log.insert_one({"k": 7})),
]
for timer in timers:
    timer.start()
began = time.time()
assert tail.next()["k"] == 7 and 0.5 < time.time() - began < 15
for timer in timers:
    timer.join()

# One that does not wait answers with what there is.
tail = log.find({"k": {"$gte": 8}}, cursor_type=CursorType.TAILABLE)
assert list(tail) == [] and tail.alive
log.insert_many([{"k": 8}, {"k": 9}])
assert [d["k"] for d in tail] == [8, 9] and tail.alive
limited = log.find({"k": {"$gte": 8}}, cursor_type=CursorType.TAILABLE, skip=1, limit=1)
assert [d["k"] for d in limited] == [9]


def ends(cursor):
    """The driver takes a lost position, and a collection that is gone, for the end."""
    deadline = time.time() + 30
    while cursor.alive and time.time() < deadline:
        list(cursor)
    return not cursor.alive


# What a cursor stood on is overwritten.
tail = log.find(cursor_type=CursorType.TAILABLE, batch_size=2)
tail.next()
log.insert_many([{"n": n} for n in range(600)])
assert ends(tail)
assert log.count_documents({}) == 500 and log.estimated_document_count() == 500
tail = log.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(10000)
assert len([tail.next() for _ in range(500)]) == 500
overwriting = threading.Timer(0.3, lambda: (log.delete_many({}), log.insert_one({"n": -1})))
overwriting.start()
assert ends(tail)
overwriting.join()

# It goes with the collection.
tail = log.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(10000)
assert tail.next()["n"] == -1
dropping = threading.Timer(0.3, log.drop)
dropping.start()
assert ends(tail)
dropping.join()
client.drop_database("capped_py")
print("capped complete")
