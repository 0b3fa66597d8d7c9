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

# Validators, and what a refused document is told.
people = db.create_collection("people", validator={"$jsonSchema": {
    "required": ["name"], "properties": {"age": {"bsonType": "int", "minimum": 0}}}})
people.insert_one({"_id": 1, "name": "x", "age": 3})
try:
    people.insert_many([{"_id": 2, "name": "y"}, {"_id": 3, "age": -1}])
    raise AssertionError("a document without a name went in")
except pymongo.errors.BulkWriteError as error:
    info = error.details["writeErrors"][0]["errInfo"]
    assert info["failingDocumentId"] == 3, info
    told = info["details"]["schemaRulesNotSatisfied"]
    assert [rule["operatorName"] for rule in told] == ["properties", "required"], told
try:
    people.find_one_and_update({"_id": 1}, {"$set": {"age": "old"}})
    raise AssertionError("an age that is none went in")
except pymongo.errors.OperationFailure as error:
    assert error.code == 121 and error.details["errInfo"]["failingDocumentId"] == 1, error.details
people.insert_one({"_id": 3}, bypass_document_validation=True)
db.command("collMod", "people", validationLevel="moderate")
assert people.update_one({"_id": 3}, {"$set": {"age": -5}}).modified_count == 1
assert people.options()["validationLevel"] == "moderate"

# Indexes that say when documents are over.
people.create_index("born", name="born", expireAfterSeconds=3600)
assert people.index_information()["born"]["expireAfterSeconds"] == 3600
changed = db.command("collMod", "people", index={"name": "born", "expireAfterSeconds": 60})
assert "isdbgrid" == client.admin.command("hello").get("msg") or changed["expireAfterSeconds_new"] == 60, changed
people.drop()

# What is near, by either kind of index.
places = db.places
places.create_index([("at", pymongo.GEOSPHERE)])
places.create_index([("xy", pymongo.GEO2D), ("kind", pymongo.ASCENDING)], min=-100, max=100)
places.insert_many({"_id": n, "at": {"type": "Point", "coordinates": [n, 0]}, "xy": [n, 0],
                    "kind": "bar" if n % 3 else "restaurant"} for n in (5, 1, 4, 2, 3, 0, 6))
here = {"type": "Point", "coordinates": [6, 0]}
near = places.find({"at": {"$nearSphere": {"$geometry": here, "$maxDistance": 400_000}}})
assert [place["_id"] for place in near] == [6, 5, 4, 3]
near = places.find({"xy": {"$near": [6, 0]}, "kind": "restaurant"}).limit(2)
assert [place["_id"] for place in near] == [6, 3]
nearest = list(places.aggregate([
    {"$geoNear": {"near": here, "key": "at", "distanceField": "distance", "spherical": True,
                  "query": {"kind": "restaurant"}}}, {"$limit": 2}]))
assert [place["_id"] for place in nearest] == [6, 3] and 333_000 < nearest[1]["distance"] < 335_000
box = {"xy": {"$within": {"$box": [[1, -1], [3, 1]]}}}
assert sorted(place["_id"] for place in places.find(box)) == [1, 2, 3]
try:
    places.insert_one({"xy": [101, 0]})
    raise AssertionError("a point out of bounds went in")
except pymongo.errors.WriteError as error:
    assert error.code == 13027
places.drop()

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
