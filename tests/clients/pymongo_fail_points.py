"""What a driver does about failures that a test makes with `configureFailPoint`: it repeats what its
labels allow, and nothing else; and what it is told with the stable API."""

import sys
import time

import pymongo
from bson import Int64
from pymongo.errors import (
    AutoReconnect,
    ConnectionFailure,
    ExecutionTimeout,
    PyMongoError,
)
from pymongo.server_api import ServerApi

uri = sys.argv[1]
# A server that a failure has discredited is asked again with the next heartbeat.
client = pymongo.MongoClient(uri, appName="till", heartbeatFrequencyMS=500)
items = client.shop.items
items.drop()
client.shop.capped.drop()


def fail_point(mode, name="failCommand", **data):
    return client.admin.command(
        {"configureFailPoint": name, "mode": mode, **({"data": data} if data else {})}
    )["count"]


def failed(operation, kind=PyMongoError):
    """The error that an operation ends with."""
    try:
        result = operation()
    except kind as error:
        return error
    raise AssertionError(f"it went well: {result}")


# A numbered write is repeated by the driver, once, and does its work once.
inserts = 0
for data in (
    {"errorCode": 91},
    {"errorCode": 10107},
    {"closeConnection": True},
    {"writeConcernError": {"code": 91, "errmsg": "for a test"}},
    {"errorCode": 8, "errorLabels": ["RetryableWriteError"]},
):
    before = fail_point({"times": 1}, failCommands=["insert"], **data)
    items.insert_one({"_id": inserts})
    inserts += 1
    assert fail_point("off") == before + 1, data
assert items.count_documents({}) == inserts

# Twice is once too often.
fail_point({"times": 2}, failCommands=["insert"], errorCode=91)
error = failed(lambda: items.insert_one({"_id": "never"}), AutoReconnect)
assert error.details["code"] == 91, error.details
assert error.has_error_label("RetryableWriteError"), error.details

# What is not labelled is not repeated.
for data in ({"errorCode": 11601}, {"errorCode": 91, "errorLabels": []}):
    before = fail_point({"times": 1}, failCommands=["update"], **data)
    error = failed(lambda: items.update_one({"_id": 0}, {"$set": {"a": 1}}))
    assert error.details["code"] == data["errorCode"], error.details
    assert "errorLabels" not in error.details, error.details
    assert fail_point("off") == before + 1
assert items.count_documents({"a": 1}) == 0

# Reads are repeated as well.
fail_point({"times": 1}, failCommands=["find"], closeConnection=True)
assert items.find_one({"_id": 0}) == {"_id": 0}
error = None
fail_point({"times": 2}, failCommands=["find"], closeConnection=True)
failed(lambda: items.find_one({"_id": 0}), ConnectionFailure)

# A command that is held up ends with its time.
fail_point({"times": 1}, failCommands=["find"], blockConnection=True, blockTimeMS=3_000)
began = time.monotonic()
failed(lambda: list(items.find().max_time_ms(200)), ExecutionTimeout)
assert time.monotonic() - began < 30
fail_point({"times": 1}, failCommands=["ping"], blockConnection=True, blockTimeMS=300)
began = time.monotonic()
client.admin.command("ping")
assert time.monotonic() - began >= 0.3

# How long a `getMore` may wait for more is not how long it may take.
capped = client.shop.create_collection("capped", capped=True, size=10_000)
capped.insert_many([{"_id": id} for id in range(3)])
tail = capped.find(batch_size=2, cursor_type=pymongo.CursorType.TAILABLE_AWAIT).max_await_time_ms(1)
assert [next(tail)["_id"], next(tail)["_id"]] == [0, 1]
fail_point({"times": 1}, failCommands=["getMore"], blockConnection=True, blockTimeMS=100)
assert next(tail)["_id"] == 2
tail.close()
capped.drop()

# Others do not notice.
fail_point("alwaysOn", failCommands=["ping"], errorCode=8, appName="shelf")
client.admin.command("ping")
with pymongo.MongoClient(uri, appName="shelf") as shelf:
    assert failed(lambda: shelf.admin.command("ping")).code == 8
fail_point("alwaysOn", failCommands=["find"], errorCode=8, namespace="shop.items")
assert client.shop.goods.find_one() is None
assert failed(lambda: items.find_one()).code == 8
fail_point({"skip": 2}, failCommands=["ping"], errorCode=8)
client.admin.command("ping")
client.admin.command("ping")
assert failed(lambda: client.admin.command("ping")).code == 8
fail_point("off")
client.admin.command("ping")

# A fail point can always be switched off, and be looked at.
fail_point("alwaysOn", failCommands=["configureFailPoint", "ping"], errorCode=8)
shown = client.admin.command({"getParameter": 1, "failpoint.failCommand": 1})
assert shown["failpoint.failCommand"]["mode"] == 1, shown
fail_point("off")
assert failed(lambda: fail_point("off", name="nope")).code == 266

# What speaks of an end that the server does not know of names no version of the topology: a driver
# would take it for old.
fail_point({"times": 1}, failCommands=["find"], errorCode=91)
refused = client.shop.command({"find": "items"}, check=False)
assert refused["code"] == 91 and "topologyVersion" not in refused, refused

# Operations with a time are out of it at once, or never.
fail_point("alwaysOn", name="maxTimeAlwaysTimeOut")
for timed in (
    lambda: items.find_one(max_time_ms=60_000),
    lambda: items.count_documents({}, maxTimeMS=60_000),
    lambda: list(items.aggregate([{"$match": {}}], maxTimeMS=60_000)),
):
    assert failed(timed).code == 50
items.find_one()
fail_point("off", name="maxTimeAlwaysTimeOut")
cursor = items.find(batch_size=1, max_time_ms=60_000)
next(cursor)
fail_point("alwaysOn", name="maxTimeAlwaysTimeOut")
assert failed(lambda: list(cursor)).code == 50
fail_point("off", name="maxTimeAlwaysTimeOut")
slow = {"$where": "sleep(60); return true"}
assert failed(lambda: items.find_one(slow, max_time_ms=20)).code == 50
fail_point("alwaysOn", name="maxTimeNeverTimeOut")
# A shard behind a router counts for itself.
if not client.is_mongos:
    assert items.find_one(slow, max_time_ms=20)
fail_point("off", name="maxTimeNeverTimeOut")

# Numbered writes fail, or lose their client, one by one and as they are written. A router writes nothing.
ON_WRITE = "onPrimaryTransactionalWrite"


def numbered(session, number, command, tries=1):
    """The replies of tries of a command under the same number; `None` for a lost connection."""
    replies = []
    for _ in range(tries):
        try:
            # The driver has used the smaller numbers of a session that it takes out again.
            again = {**command, "txnNumber": Int64(1_000 + number)}
            replies.append(client.shop.command(again, session=session, check=False))
        except AutoReconnect:
            replies.append(None)
    return replies


def faults(reply):
    return [(fault["index"], fault["code"]) for fault in reply.get("writeErrors", [])]


if client.is_mongos:
    assert failed(lambda: fail_point("off", name=ON_WRITE)).code == 266
else:
    written = client.shop.written
    written.drop()
    with client.start_session() as session:
        # It is written, its client is gone, and finds it done.
        fail_point({"times": 1}, name=ON_WRITE)
        insert = {"insert": "written", "documents": [{"_id": id} for id in range(3)]}
        lost, again = numbered(session, 1, insert, tries=2)
        assert lost is None and again["n"] == 3, again
        assert again["retriedStmtIds"] == [0, 1, 2], again
        # What fails before it is written is written by the next try.
        code = {"failBeforeCommitExceptionCode": 1, "closeConnection": False}
        increment = {"q": {"_id": 0}, "u": {"$inc": {"times": 1}}}
        before = fail_point({"times": 1}, name=ON_WRITE, **code)
        updates = [increment, {**increment, "q": {"_id": 1}}]
        update = {"update": "written", "updates": updates, "ordered": False}
        refused, done = numbered(session, 2, update, tries=2)
        assert faults(refused) == [(0, 1)] and refused["nModified"] == 1, refused
        assert done["nModified"] == 2 and done["retriedStmtIds"] == [1], done
        assert [found.get("times") for found in written.find()] == [1, 1, None]
        # Documents that cannot be inserted together are inserted one by one.
        assert fail_point({"times": 2}, name=ON_WRITE, **code) == before + 1
        insert = {"insert": "written", "documents": [{"_id": id} for id in range(3, 6)]}
        [refused] = numbered(session, 3, {**insert, "ordered": False})
        assert faults(refused) == [(0, 1)] and refused["n"] == 2, refused
        # What changes nothing is not written.
        fail_point("alwaysOn", name=ON_WRITE, **code)
        delete = {"delete": "written", "deletes": [{"q": {"_id": "none"}, "limit": 1}]}
        [nothing] = numbered(session, 4, delete)
        assert nothing["n"] == 0 and not faults(nothing), nothing
        delete["deletes"][0]["q"]["_id"] = 0
        [refused] = numbered(session, 5, delete)
        assert faults(refused) == [(0, 1)], refused
        modify = {"findAndModify": "written", "query": {"_id": 0}, "remove": True}
        [refused] = numbered(session, 6, modify)
        assert refused["code"] == 1, refused
        # Nor has it to do with writes that have no number.
        delete["deletes"][0]["q"]["_id"] = 4
        assert client.shop.command(delete)["n"] == 1
    # A driver repeats it when it has lost its connection, and only then.
    fail_point({"times": 1}, name=ON_WRITE)
    assert written.find_one_and_update({"_id": 0}, {"$inc": {"times": 1}})["times"] == 1
    assert written.find_one({"_id": 0})["times"] == 2
    fail_point({"times": 1}, name=ON_WRITE, failBeforeCommitExceptionCode=1)
    assert written.update_one({"_id": 0}, {"$inc": {"times": 1}}).modified_count == 1
    assert written.find_one({"_id": 0})["times"] == 3
    fail_point({"times": 1}, name=ON_WRITE, **code)
    assert failed(lambda: written.delete_one({"_id": 0})).code == 1
    fail_point("off", name=ON_WRITE)

# The stable API.
strict = pymongo.MongoClient(uri, server_api=ServerApi("1", strict=True, deprecation_errors=True))
assert strict.shop.items.count_documents({}) == inserts
assert len(list(strict.shop.items.find().batch_size(2))) == inserts
assert failed(lambda: strict.shop.items.distinct("_id")).code == 323
assert failed(lambda: list(strict.shop.items.aggregate([{"$indexStats": {}}]))).code == 323
assert failed(lambda: client.shop.command("ping", apiVersion="2")).code == 322
versioned = pymongo.MongoClient(uri, server_api=ServerApi("1"))
versioned.admin.command({"setParameter": 1, "requireApiVersion": True})
assert failed(lambda: client.shop.command("ping")).code == 498870
strict.admin.command("ping")
versioned.admin.command({"setParameter": 1, "requireApiVersion": False})
client.admin.command("ping")
with client.start_session() as session:
    opened = client.shop.command(
        {"find": "items", "batchSize": 1, "apiVersion": "1"}, session=session
    )
    more = {"getMore": opened["cursor"]["id"], "collection": "items"}
    assert failed(lambda: client.shop.command(more, session=session)).code == 347
    rest = client.shop.command({**more, "apiVersion": "1"}, session=session)
    assert len(rest["cursor"]["nextBatch"]) == inserts - 1

print("fail points complete")
