"""Makes the first user, logs in with both mechanisms, is refused, is given roles."""

import sys

from pymongo import MongoClient
from pymongo.errors import OperationFailure

HOST = sys.argv[1]
PASSWORD = "a long secret"


def client(user=None, password=PASSWORD, **options):
    if user is None:
        return MongoClient(HOST, directConnection=True)
    return MongoClient(HOST, username=user, password=password, directConnection=True, **options)


def code(action):
    try:
        action()
    except OperationFailure as error:
        return error.code
    return 0


nobody = client()
assert code(lambda: nobody.test.c.find_one()) == 13
nobody.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
assert code(lambda: nobody.admin.command("createUser", "x", pwd="x", roles=[])) == 13

for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256", None):
    options = {} if mechanism is None else {"authMechanism": mechanism}
    root = client("root", **options)
    users = root.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
    assert users == [{"user": "root", "db": "admin"}], users
    assert code(lambda: client("root", "wrong", **options).test.c.find_one()) == 18

root.test.c.insert_many([{"a": n} for n in range(10)])
root.test.command("createUser", "reader", pwd=PASSWORD, roles=["read"])
reader = client("reader", authSource="test")
assert reader.test.c.count_documents({}) == 10
assert [len(batch) for batch in [list(reader.test.c.find(batch_size=3))]] == [10]
assert code(lambda: reader.test.c.insert_one({})) == 13
assert code(lambda: reader.admin.command("getLog", "global")) == 13
join = {"$lookup": {"from": "secrets", "localField": "a", "foreignField": "a", "as": "b"}}
assert list(reader.test.c.aggregate([join, {"$limit": 1}]))[0]["b"] == []
assert code(lambda: list(reader.test.c.aggregate([{"$out": "d"}]))) == 13
assert reader.list_database_names() == ["test"]
assert reader.test.list_collection_names() == ["c"]
root.test.command("grantRolesToUser", "reader", roles=["readWrite"])
reader.test.c.insert_one({})
print("access complete")
