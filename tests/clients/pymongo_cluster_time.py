"""Forges cluster times, and hands on honest ones. Needs a user root at HOST and at KEYS, where the keys
that HOST signs with are kept."""

import hmac
import struct
import sys
import time

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo_raw import code, connect, make_user

HOST, KEYS = sys.argv[1], sys.argv[2]
WITHIN = 30
MISMATCH, TOO_FAR, UNKNOWN_KEY = 204, 205, 211


def eventually(what, find):
    until = time.monotonic() + WITHIN
    while time.monotonic() < until:
        found = find()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(what)


def member(host):
    root = connect(host, "root")
    make_user(root, "member", "__system")
    make_user(root, "alice", {"role": "readWrite", "db": "test"})
    make_user(root, "bob", {"role": "readWrite", "db": "test"})
    return connect(host, "member")


keeper = member(KEYS)
trusted = keeper if HOST == KEYS else member(HOST)
alice, bob, nobody = connect(HOST, "alice"), connect(HOST, "bob"), connect(HOST)


def keys():
    return {key["_id"]: key for key in keeper.admin["system.keys"].find()}


def proof(key, at):
    covered = (at.time << 32 | at.inc) | 0xFFFF
    return hmac.digest(key["key"], struct.pack("<Q", covered), "sha1")


def signed(at, hash, key_id):
    return {"clusterTime": at, "signature": {"hash": Binary(hash), "keyId": Int64(key_id)}}


def told(client):
    return client.admin.command("ping").get("$clusterTime")


def ping(client, gossip, command="ping"):
    return code(client, "admin", {command: 1, "$clusterTime": gossip})


def is_honest(gossip):
    key = keys()[gossip["signature"]["keyId"]]
    assert key["purpose"] == "HMAC" and len(key["key"]) == 20, key
    assert gossip["signature"]["hash"] == proof(key, gossip["clusterTime"]), gossip
    return key


def fresh():
    """A time by a key that signs for a while yet."""
    alice.test.c.insert_one({})
    gossip = told(alice)
    if gossip is None:
        return None
    left = is_honest(gossip)["expiresAt"].time - gossip["clusterTime"].time
    return gossip if left > 4 else None


gossip = eventually("the time is signed", fresh)
key = is_honest(gossip)
is_honest(told(nobody))
assert told(trusted)["signature"]["keyId"] == 0, told(trusted)
assert code(connect(HOST, "root"), "admin", {"find": "system.keys"}) == 13

# Nobody but the cluster makes times.
later = Timestamp(min(gossip["clusterTime"].time + 1000, key["expiresAt"].time - 1), 1)
for client in (alice, nobody):
    for hash in (b"\1" * 20, gossip["signature"]["hash"]):
        for command in ("ping", "hello"):
            assert ping(client, signed(later, hash, key["_id"]), command) == MISMATCH
insert = {"insert": "c", "documents": [{}], "$clusterTime": signed(later, b"\1" * 20, key["_id"])}
assert code(alice, "test", insert) == MISMATCH
# A stranger's time without proof counts for nothing, and so does one that is no news.
assert ping(nobody, signed(later, b"\0" * 20, 0)) == 0
past = Timestamp(gossip["clusterTime"].time - 1000, 1)
assert ping(alice, signed(past, b"\1" * 20, 77)) == 0
assert told(alice)["clusterTime"] < later, "the clock was pushed"
# A key that nobody made, or that signs no time as late as that.
expired = Timestamp(key["expiresAt"].time, 1)
for client, forged in (
    (alice, signed(later, b"\1" * 20, 77)),
    (nobody, signed(later, b"\1" * 20, 77)),
    (alice, signed(later, b"\0" * 20, 0)),
    (alice, signed(expired, proof(key, expired), key["_id"])),
):
    if told(alice)["clusterTime"] < forged["clusterTime"]:
        assert ping(client, forged) == UNKNOWN_KEY, forged
# Not even members push it to the end of all times.
end = Timestamp(2**32 - 1, 1)
assert ping(trusted, signed(end, b"\0" * 20, 0)) == TOO_FAR

# What was signed with the cluster's key is believed, and moves the clock.
now = told(alice)["clusterTime"]
key = is_honest(told(alice))
ahead = Timestamp(min(now.time + 2, key["expiresAt"].time - 1), 7)
if ahead > now:
    assert ping(alice, signed(ahead, proof(key, ahead), key["_id"])) == 0
    assert told(alice)["clusterTime"] >= ahead

# Causal sessions of two users: what one has written the other reads, by the time alone.
for round in range(20):
    with alice.start_session(causal_consistency=True) as writer:
        alice.test.c.insert_one({"_id": f"{HOST} {round}"}, session=writer)
        with bob.start_session(causal_consistency=True) as reader:
            reader.advance_cluster_time(writer.cluster_time)
            reader.advance_operation_time(writer.operation_time)
            found = bob.test.c.find_one({"_id": f"{HOST} {round}"}, session=reader)
            assert found, round

# Keys take turns, and who follows the time notices nothing.
first = told(alice)["signature"]["keyId"]


def turned():
    alice.test.c.insert_one({})
    with alice.start_session(causal_consistency=True) as session:
        alice.test.c.find_one({}, session=session)
    gossip = told(alice)
    is_honest(gossip)
    return gossip["signature"]["keyId"] != first


eventually("another key signs", turned)
assert is_honest(told(alice))["_id"] > first
print("cluster time complete")
