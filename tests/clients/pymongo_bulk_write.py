"""`bulkWrite` of MongoDB 8.0, sent as a command: drivers use it from that version on."""

import sys

import bson
import pymongo
from pymongo.errors import OperationFailure

client = pymongo.MongoClient(sys.argv[1])
client.drop_database("shop")
client.drop_database("depot")
items, goods = client.shop.items, client.depot.goods
NAMES = [{"ns": "shop.items"}, {"ns": "depot.goods"}]


def bulk(*ops, **options):
    command = {"bulkWrite": 1, "ops": list(ops), "nsInfo": NAMES, **options}
    reply = client.admin.command(command)
    assert reply["cursor"]["ns"] == "admin.$cmd.bulkWrite", reply
    counts = [
        reply[name]
        for name in ("nErrors", "nInserted", "nMatched", "nModified", "nUpserted", "nDeleted")
    ]
    return counts, reply["cursor"]["firstBatch"], reply


def put(place, *ids):
    return [{"insert": place, "document": {"_id": _id, "n": 0}} for _id in ids]


counts, told, _ = bulk(
    *put(0, 1, 2),
    *put(1, 1),
    {"update": 0, "filter": {"_id": 1}, "updateMods": {"$inc": {"n": 1}}},
    {"update": 1, "filter": {"_id": 7}, "updateMods": {"$set": {"n": 7}}, "upsert": True},
    {"update": 0, "filter": {}, "updateMods": [{"$set": {"m": "$$x"}}], "multi": True},
    {"delete": 0, "filter": {"_id": 2}},
    let={"x": 5},
)
assert counts == [0, 3, 3, 3, 1, 1], counts
assert told == [
    {"ok": 1.0, "idx": 0, "n": 1},
    {"ok": 1.0, "idx": 1, "n": 1},
    {"ok": 1.0, "idx": 2, "n": 1},
    {"ok": 1.0, "idx": 3, "n": 1, "nModified": 1},
    {"ok": 1.0, "idx": 4, "n": 1, "nModified": 0, "upserted": {"_id": 7}},
    {"ok": 1.0, "idx": 5, "n": 2, "nModified": 2},
    {"ok": 1.0, "idx": 6, "n": 1},
], told
assert list(items.find()) == [{"_id": 1, "n": 1, "m": 5}]
assert list(goods.find().sort("_id")) == [{"_id": 1, "n": 0}, {"_id": 7, "n": 7}]

# An ordered one ends at the first error, an unordered one does all the rest.
counts, told, _ = bulk(*put(0, 3, 3, 4), errorsOnly=True)
assert counts == [1, 1, 0, 0, 0, 0], counts
assert [(one["ok"], one["idx"], one["code"], one["n"]) for one in told] == [(0.0, 1, 11000, 0)]
counts, told, _ = bulk(
    *put(0, 3, 4),
    {"update": 0, "filter": {"_id": 4}, "updateMods": {"$wat": 1}},
    {"update": 0, "filter": {"_id": 4}, "updateMods": {"$inc": {"n": 1}}},
    *put(1, 3),
    errorsOnly=True,
    ordered=False,
)
assert counts == [2, 2, 1, 1, 0, 0], (counts, told)
assert [(one["idx"], one["code"]) for one in told] == [(0, 11000), (2, 9)], told
assert items.find_one({"_id": 4})["n"] == 1

# Results come in batches, if they are wanted so.
with client.start_session() as session:
    command = {"bulkWrite": 1, "ops": put(0, *range(10, 20)), "nsInfo": NAMES}
    reply = client.admin.command({**command, "cursor": {"batchSize": 4}}, session=session)
    assert len(reply["cursor"]["firstBatch"]) == 4, reply
    more = {"getMore": reply["cursor"]["id"], "collection": "$cmd.bulkWrite"}
    rest = client.admin.command(more, session=session)["cursor"]
    assert [one["idx"] for one in rest["nextBatch"]] == [4, 5, 6, 7, 8, 9] and rest["id"] == 0

    # A numbered one that is sent again does nothing twice.
    again = {
        "bulkWrite": 1,
        "ops": [
            *put(0, 30),
            {"update": 0, "filter": {"_id": 30}, "updateMods": {"$inc": {"n": 1}}},
            {"delete": 1, "filter": {"_id": 7}},
        ],
        "nsInfo": NAMES,
        "txnNumber": bson.Int64(1),
    }
    first = client.admin.command(again, session=session)
    second = client.admin.command(again, session=session)
    assert first["cursor"]["firstBatch"] == second["cursor"]["firstBatch"]
    assert sorted(second["retriedStmtIds"]) == [0, 1, 2], second
    assert items.find_one({"_id": 30})["n"] == 1


def refused(**changed):
    command = {"bulkWrite": 1, "ops": put(0, 99), "nsInfo": NAMES, **changed}
    try:
        client.admin.command(command)
    except OperationFailure as error:
        return error.code
    raise AssertionError(f"{changed} was taken")


assert refused(ops=[]) == 16
assert refused(ops=put(2, 99)) == 2
assert refused(nsInfo=[{}]) == 40414
assert items.find_one({"_id": 99}) is None

print("bulk complete")
