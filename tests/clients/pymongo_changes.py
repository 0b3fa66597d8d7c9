"""Change streams and the oplog from pymongo, against the replica set given."""

import sys
import threading

import pymongo
from pymongo import CursorType

client = pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=20000)
client.drop_database("changes_py")
db = client.changes_py
db.create_collection("posts", changeStreamPreAndPostImages={"enabled": True})
posts = db.posts

# A stream waits, and wakes when another thread writes.
with posts.watch(full_document_before_change="required", full_document="required") as stream:
    writer = threading.Thread(target=lambda: posts.insert_one({"_id": 1, "tags": ["a"], "n": 1}))
    writer.start()
    event = stream.next()
    writer.join()
    assert event["operationType"] == "insert" and event["fullDocument"]["tags"] == ["a"], event
    posts.update_one({"_id": 1}, {"$push": {"tags": "b"}, "$inc": {"n": 1}})
    posts.update_one({"_id": 1}, {"$pull": {"tags": "a"}})
    pushed, pulled = stream.next(), stream.next()
    assert pushed["updateDescription"]["updatedFields"] == {"tags.1": "b", "n": 2}, pushed
    assert pushed["fullDocumentBeforeChange"] == {"_id": 1, "tags": ["a"], "n": 1}, pushed
    assert pulled["updateDescription"]["updatedFields"] == {"tags": ["b"]}, pulled
    assert pulled["fullDocument"] == {"_id": 1, "tags": ["b"], "n": 2}, pulled

# Another goes on behind any of these events, or begins at its time.
with posts.watch(resume_after=event["_id"]) as stream:
    assert stream.next()["_id"] == pushed["_id"]
with posts.watch(start_at_operation_time=pulled["clusterTime"]) as stream:
    assert stream.next()["_id"] == pulled["_id"]
with db.watch([{"$project": {"documentKey": 1}}], start_after=pushed["_id"]) as stream:
    assert stream.next() == {"_id": pulled["_id"], "documentKey": {"_id": 1}}
with client.watch(start_after=pushed["_id"], show_expanded_events=True) as stream:
    assert stream.next()["updateDescription"]["disambiguatedPaths"] == {}
    posts.create_index("n")
    made = stream.next()
    assert made["operationType"] == "createIndexes", made
    assert made["operationDescription"]["indexes"][0]["key"] == {"n": 1}, made
# Views are told of as well, and a change of options that changes nothing.
with db.watch(show_expanded_events=True) as stream:
    db.create_collection("tagged", viewOn="posts", pipeline=[{"$match": {"n": 1}}])
    db.command("collMod", "tagged", viewOn="posts", pipeline=[])
    db.drop_collection("tagged")
    db.command("collMod", "posts")
    told = [stream.next() for _ in range(4)]
    kinds = [(event["operationType"], event["ns"]["coll"]) for event in told]
    views = [(kind, "tagged") for kind in ("create", "modify", "drop")]
    assert kinds == [*views, ("modify", "posts")], kinds
    assert told[0]["operationDescription"] == {
        "viewOn": "posts",
        "pipeline": [{"$match": {"n": 1}}],
    }, told[0]
    assert "collectionUUID" not in told[0] and "operationDescription" not in told[2], told
try:
    posts.watch([{"$project": {"_id": 0}}], resume_after=event["_id"]).next()
    raise AssertionError("an event without its token went through")
except pymongo.errors.OperationFailure as error:
    assert error.code == 280, error

# The oplog has the same writes.
oplog = client.local["oplog.rs"]
cursor = oplog.find({"ts": {"$gte": event["clusterTime"]}}, cursor_type=CursorType.TAILABLE_AWAIT)
entries = [next(cursor) for _ in range(3)]
assert [entry["op"] for entry in entries] == ["i", "u", "u"], entries
assert entries[1]["o"] == {"$v": 2, "diff": {"u": {"n": 2}, "stags": {"a": True, "u1": "b"}}}, entries
assert entries[1]["o2"] == {"_id": 1} and entries[1]["ns"] == "changes_py.posts", entries
assert entries[0]["ts"] < entries[1]["ts"] < entries[2]["ts"]
assert entries[1]["txnNumber"] > entries[0]["txnNumber"] and entries[0]["stmtId"] == 0, entries
client.drop_database("changes_py")
print("changes complete")
