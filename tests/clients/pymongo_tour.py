"""A tour through what pymongo users do every day, against the address given."""

import sys

import bson
import pymongo
from pymongo import InsertOne, UpdateOne, DeleteOne, ReplaceOne

client = pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=20000)
client.drop_database("tour_py")
db = client.tour_py
posts = db.posts

assert client.admin.command("ping")["ok"] == 1
assert client.server_info()["versionArray"][0] == 7

# Insert, and what comes back is what went in.
kinds = {
    "_id": "kinds", "int": 1, "long": bson.Int64(2), "double": 1.5, "text": "text \u00e9", "none": None,
    "flag": True, "list": [1, [2, {"x": 3}]], "binary": b"\x00\x01", "oid": bson.ObjectId(),
    "code": bson.Code("function() {}"), "regex": bson.Regex("^a", "i"), "ts": bson.Timestamp(1, 2),
    "decimal": bson.Decimal128("1.10"), "min": bson.MinKey(), "max": bson.MaxKey(), "doc": {"a": {"b": 1}},
}
posts.insert_one(kinds)
assert posts.find_one({"_id": "kinds"}) == kinds
posts.delete_one({"_id": "kinds"})

posts.insert_many([{"_id": i, "n": i, "even": i % 2 == 0, "tags": ["a", "b"] if i % 3 else ["c"]} for i in range(300)])
assert posts.count_documents({}) == 300
assert posts.estimated_document_count() == 300
assert [p["n"] for p in posts.find({"n": {"$gte": 295}}).sort("n", -1)] == [299, 298, 297, 296, 295]
assert len(list(posts.find({}, batch_size=17))) == 300
assert posts.find_one({"n": 5}, {"_id": 0, "n": 1}) == {"n": 5}
assert posts.count_documents({"tags": "c"}) == 100
assert sorted(posts.distinct("tags")) == ["a", "b", "c"]
assert posts.count_documents({"$or": [{"n": 1}, {"n": {"$in": [2, 3]}}], "tags": {"$size": 2}}) == 2

# Update, upsert, find and modify.
assert posts.update_many({"even": True}, {"$inc": {"n": 1000}, "$push": {"tags": "big"}}).modified_count == 150
assert posts.update_one({"_id": "new"}, {"$set": {"a.b": 1}}, upsert=True).upserted_id == "new"
assert posts.find_one({"_id": "new"}) == {"_id": "new", "a": {"b": 1}}
assert posts.find_one_and_update({"_id": "new"}, {"$set": {"c": 2}}, return_document=True)["c"] == 2
assert posts.find_one_and_replace({"_id": "new"}, {"d": 1})["c"] == 2
assert posts.find_one_and_delete({"_id": "new"}) == {"_id": "new", "d": 1}
outcome = posts.bulk_write([InsertOne({"_id": "b"}), UpdateOne({"_id": "b"}, {"$set": {"x": 1}}),
                            ReplaceOne({"_id": "b"}, {"y": 2}), DeleteOne({"_id": "b"})])
assert (outcome.inserted_count, outcome.modified_count, outcome.deleted_count) == (1, 2, 1)

# Indexes and what they refuse.
posts.create_index("n", unique=True)
assert set(posts.index_information()) == {"_id_", "n_1"}
try:
    posts.insert_one({"n": 1})
    raise AssertionError("a duplicate went in")
except pymongo.errors.DuplicateKeyError as error:
    assert error.details["keyPattern"] == {"n": 1} and error.details["keyValue"] == {"n": 1}
try:
    posts.insert_many([{"_id": 0}, {"_id": "fresh", "n": -1}], ordered=False)
    raise AssertionError("a duplicate went in")
except pymongo.errors.BulkWriteError as error:
    assert error.details["nInserted"] == 1 and error.details["writeErrors"][0]["code"] == 11000
posts.drop_index("n_1")

# Aggregation.
rows = list(posts.aggregate([{"$match": {"n": {"$gte": 0}}}, {"$unwind": "$tags"},
                             {"$group": {"_id": "$tags", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]))
assert rows == [{"_id": "a", "n": 200}, {"_id": "b", "n": 200}, {"_id": "big", "n": 150}, {"_id": "c", "n": 100}], rows
posts.aggregate([{"$project": {"n": 1}}, {"$out": "copied"}])
assert db.copied.count_documents({}) == 301

# Sessions, and the collections themselves.
with client.start_session(causal_consistency=True) as session:
    posts.insert_one({"_id": "session"}, session=session)
    assert posts.find_one({"_id": "session"}, session=session)
assert set(db.list_collection_names()) == {"posts", "copied"}
db.copied.rename("renamed") if "isdbgrid" != client.admin.command("hello").get("msg") else db.copied.drop()
assert "tour_py" in client.list_database_names()
assert db.command("collStats", "posts")["count"] == 302
try:
    db.command("noSuchCommand")
    raise AssertionError("an unknown command went through")
except pymongo.errors.OperationFailure as error:
    assert error.code == 59 and error.details["codeName"] == "CommandNotFound"
client.drop_database("tour_py")
assert "tour_py" not in client.list_database_names()
print("tour complete")
