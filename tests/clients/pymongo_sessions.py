"""Two users who call their sessions by one id. With `again`: after a restart."""

import hashlib
import sys
import uuid

from bson.binary import Binary
from bson.int64 import Int64
from pymongo_raw import code, connect, make_user

HOST, PHASE = sys.argv[1], sys.argv[2]
ID = uuid.UUID(int=0x5E5510)
UNAUTHORIZED, CURSOR_NOT_FOUND, USER_NOT_FOUND = 13, 43, 11

root = connect(HOST, "root")
for user in ("alice", "bob"):
    make_user(root, user, {"role": "readWrite", "db": "test"})
make_user(root, "manager", "hostManager")
alice, bob, manager = (connect(HOST, user) for user in ("alice", "bob", "manager"))


def lsid(user=None):
    named = {"id": Binary.from_uuid(ID)}
    if user is not None:
        named["uid"] = Binary(hashlib.sha256(user.encode()).digest())
    return named


def increment(client, number):
    """A numbered statement, which counts once however often it is sent."""
    update = {"q": {"_id": "counter"}, "u": {"$inc": {"n": 1}}, "upsert": True}
    command = {"update": "c", "updates": [update], "lsid": lsid(), "txnNumber": Int64(number)}
    client.test.command(command)
    return client.test.c.find_one({"_id": "counter"})["n"]


if PHASE == "first":
    assert increment(alice, 1) == 1
    assert increment(alice, 1) == 1, "a retry"
    assert increment(bob, 1) == 2, "bob has not done this before"
    assert increment(bob, 1) == 2, "a retry"
else:
    assert increment(alice, 1) == 2, "her retry is known after the restart"
    assert increment(bob, 1) == 2, "and so is his"
    assert increment(alice, 2) == 3
    assert increment(bob, 1) == 2 + 1, "her number is not his"

# Only members name other users.
for name, allowed in (("alice@admin", 0), ("bob@admin", UNAUTHORIZED)):
    assert code(alice, "test", {"find": "c", "lsid": lsid(name)}) == allowed, name
    assert code(alice, "admin", {"refreshSessions": [lsid(name)]}) == allowed, name
    assert code(alice, "admin", {"endSessions": [lsid(name)]}) == allowed, name
    assert code(manager, "admin", {"endSessions": [lsid(name)]}) == UNAUTHORIZED, name

alice.test.c.insert_many([{} for _ in range(50)])


def ends(killer, command, expected=0):
    """Whether the command ends alice's session, in which she has a cursor."""
    find = {"find": "c", "batchSize": 2, "lsid": lsid()}
    cursor = alice.test.command(find)["cursor"]["id"]
    assert code(killer, "admin", command) == expected, command
    more = {"getMore": Int64(cursor), "collection": "c", "batchSize": 1, "lsid": lsid()}
    assert code(bob, "test", more) == (CURSOR_NOT_FOUND if found(more) else UNAUTHORIZED)
    return found(more)


def found(more):
    gone = code(alice, "test", more)
    assert gone in (0, CURSOR_NOT_FOUND), gone
    return gone == CURSOR_NOT_FOUND


def user(name):
    return {"user": name, "db": "admin"}


mine, theirs = lsid("alice@admin"), lsid("bob@admin")
nothing = [
    (bob, {"killSessions": [lsid()]}, 0),
    (bob, {"killSessions": []}, 0),
    (bob, {"killSessions": [mine]}, UNAUTHORIZED),
    (bob, {"endSessions": [lsid()]}, 0),
    (bob, {"killAllSessions": []}, UNAUTHORIZED),
    (alice, {"killAllSessions": [user("alice")]}, UNAUTHORIZED),
    (alice, {"killAllSessionsByPattern": [{"uid": mine["uid"]}]}, UNAUTHORIZED),
    (manager, {"killSessions": [lsid()]}, 0),
    (manager, {"killAllSessions": [user("bob")]}, 0),
    (manager, {"killAllSessions": [user("nobody")]}, USER_NOT_FOUND),
    (manager, {"killAllSessions": [{"user": "alice"}]}, 40414),
    (manager, {"killAllSessionsByPattern": [{"uid": theirs["uid"]}]}, 0),
    (manager, {"killAllSessionsByPattern": [{"lsid": theirs}]}, 0),
    (manager, {"killAllSessionsByPattern": [{"lsid": mine, "uid": theirs["uid"]}]}, 0),
    (manager, {"killAllSessionsByPattern": [{"lsid": lsid()}]}, 40414),
    (manager, {"killAllSessionsByPattern": [{"x": 1}]}, 40415),
    (manager, {"killAllSessionsByPattern": [{"users": [], "roles": []}]}, UNAUTHORIZED),
]
for killer, command, expected in nothing:
    assert not ends(killer, command, expected), command
everything = [
    (alice, {"killSessions": [lsid()]}),
    (alice, {"killSessions": []}),
    (manager, {"killSessions": [mine]}),
    (manager, {"killAllSessions": [user("alice")]}),
    (manager, {"killAllSessions": [user("bob"), user("alice")]}),
    (manager, {"killAllSessions": []}),
    (manager, {"killAllSessionsByPattern": []}),
    (manager, {"killAllSessionsByPattern": [{}]}),
    (manager, {"killAllSessionsByPattern": [{"uid": mine["uid"]}]}),
    (manager, {"killAllSessionsByPattern": [{"uid": theirs["uid"]}, {"lsid": mine}]}),
]
for killer, command in everything:
    assert ends(killer, command), command
print("sessions complete")
