//! Configurations that are taken and that are not, and what is said about them.

use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::{RawDocumentBuf, rawdoc};

use super::*;

fn parse(document: RawDocumentBuf) -> Result<SetConfig, CommandError> {
    SetConfig::parse(&document)
}

fn member(id: i32, host: &str) -> RawDocumentBuf {
    rawdoc! { "_id": id, "host": host }
}

fn of(members: RawArrayBuf) -> RawDocumentBuf {
    rawdoc! { "_id": "s", "members": members }
}

fn with_settings(settings: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = of(RawArrayBuf::from_iter([member(0, "a:1")]));
    out.append(cstr!("settings"), settings);
    out
}

#[test]
fn what_is_written_reads_back() {
    let mut config = SetConfig::of_one("set_a", "db1:27018");
    config.settings.replica_set_id = Some(ObjectId::new());
    config.majority_journals = false;
    config.settings.heartbeat_interval_ms = 2000;
    config.members.push(MemberConfig {
        priority: 2.5,
        ..MemberConfig::new(3, "db2:27018")
    });
    assert_eq!(parse(config.to_document()).unwrap(), config);
}

#[test]
fn members_get_a_port_and_arbiters_no_priority() {
    let config = parse(rawdoc! {
        "_id": "s",
        "members": [
            { "_id": 0, "host": "a" },
            { "_id": 1, "host": "b:1", "arbiterOnly": true },
            { "_id": 300, "host": "[::2]:7", "slaveDelay": 5.5, "priority": 0, "hidden": true },
        ],
    })
    .unwrap();
    assert_eq!(config.members[0].host, "a:27017");
    assert_eq!(config.members[1].priority, 0.0);
    assert!(!config.members[1].electable() && !config.members[1].is_writable_voter());
    assert_eq!(config.members[2].host, "[::2]:7");
    assert_eq!(config.members[2].delay_seconds, 5);
}

#[test]
fn a_member_is_refused_in_mongodbs_words() {
    let a = rawdoc! { "_id": 0, "host": "a:1" };
    let mut said = Vec::new();
    for (field, value) in [
        ("priority", rawdoc! { "v": -1 }),
        ("priority", rawdoc! { "v": 1001 }),
        ("priority", rawdoc! { "v": "x" }),
        ("votes", rawdoc! { "v": 2 }),
        ("votes", rawdoc! { "v": 0 }),
        ("hidden", rawdoc! { "v": true }),
        ("secondaryDelaySecs", rawdoc! { "v": 5 }),
        ("secondaryDelaySecs", rawdoc! { "v": -1 }),
        ("buildIndexes", rawdoc! { "v": false }),
        ("what", rawdoc! { "v": 1 }),
        ("horizons", rawdoc! { "v": {} }),
    ] {
        let mut changed = a.clone();
        let value: bson::RawBson = value.get("v").unwrap().unwrap().into();
        changed.append(bson::raw::CString::try_from(field).unwrap(), value);
        let error = parse(of(RawArrayBuf::from_iter([changed]))).unwrap_err();
        assert_eq!(error.code.code(), 93, "{field}: {error}");
        let (_, cause) = error.message.split_once(" :: caused by :: ").unwrap();
        said.push(cause.to_owned());
    }
    assert_eq!(
        said,
        [
            "BSON field 'priority' value must be >= 0, actual value '-1'",
            "BSON field 'priority' value must be <= 1000, actual value '1001'",
            "BSON field 'MemberConfig.priority' is the wrong type 'string', expected types \
             '[long, int, decimal, double']",
            "BSON field 'votes' value must be <= 1, actual value '2'",
            "priority must be 0 when non-voting (votes:0)",
            "priority must be 0 when hidden=true",
            "priority must be 0 when secondaryDelaySecs is used",
            "BSON field 'secondaryDelaySecs' value must be >= 0, actual value '-1'",
            "priority must be 0 when buildIndexes=false",
            "BSON field 'MemberConfig.what' is an unknown field.",
            "The horizons field cannot be empty, if present.",
        ]
    );
}

#[test]
fn what_mongodb_refuses_is_refused() {
    let two = |a: RawDocumentBuf, b: RawDocumentBuf| of(RawArrayBuf::from_iter([a, b]));
    let one = |a: RawDocumentBuf| of(RawArrayBuf::from_iter([a]));
    let refused = [
        (
            rawdoc! { "_id": "s" },
            "BSON field 'ReplSetConfig.members' is missing",
        ),
        (
            rawdoc! { "members": [] },
            "BSON field 'ReplSetConfig._id' is missing",
        ),
        (rawdoc! { "_id": "s", "members": [] }, "contains 0 members"),
        (
            rawdoc! { "_id": "", "members": [member(0, "a:1")] },
            "non-empty _id",
        ),
        (
            rawdoc! { "_id": "s", "members": [1] },
            "'ReplSetConfig.members.0' is the wrong type",
        ),
        (
            two(member(0, "a:1"), member(0, "b:1")),
            "same _id field, members.0._id == members.1._id",
        ),
        (two(member(0, "a:1"), member(1, "a:1")), "same host field"),
        (
            two(member(0, "a:1"), member(1, "localhost:1")),
            "found 1 out of 2",
        ),
        (one(member(-1, "a:1")), "can't be a negative number"),
        (one(member(0, "a:x")), "Did not consume whole string."),
        (one(member(0, "a:0")), "Port number 0 out of range"),
        (one(member(0, "a:1:2")), "More than one ':' detected"),
        (one(rawdoc! { "_id": 0 }), "'MemberConfig.host' is missing"),
        (
            one(rawdoc! { "_id": 0, "host": "a", "priority": 0 }),
            "non-arbiter member with priority",
        ),
        (
            one(rawdoc! { "_id": 0, "host": "a", "newlyAdded": true }),
            "newlyAdded",
        ),
        (
            one(rawdoc! { "_id": 0, "host": "a", "tags": { "b": 1 } }),
            "tags.b field has non-string",
        ),
        (
            two(
                member(0, "a:1"),
                rawdoc! { "_id": 1, "host": "b", "arbiterOnly": true, "priority": 2 },
            ),
            "is an arbiter but has priority 2",
        ),
        (
            two(
                member(0, "a:1"),
                rawdoc! { "_id": 1, "host": "b", "arbiterOnly": true, "tags": { "x": "y" } },
            ),
            "Cannot set tags on arbiters.",
        ),
        (
            with_settings(rawdoc! { "electionTimeoutMillis": 0 }),
            "must be > 0",
        ),
        (
            with_settings(rawdoc! { "electionTimeoutMillis": 1.5 }),
            "exactly representable",
        ),
        (
            with_settings(rawdoc! { "catchUpTimeoutMillis": -2 }),
            "must be >= -1",
        ),
        (
            with_settings(rawdoc! { "getLastErrorDefaults": { "w": 0 } }),
            "at least 1 member",
        ),
        (
            with_settings(rawdoc! { "getLastErrorDefaults": { "w": 2 } }),
            "setDefaultRWConcern",
        ),
        (
            with_settings(rawdoc! { "getLastErrorModes": { "m": { "dc": 1 } } }),
            "tag key dc",
        ),
        (
            with_settings(rawdoc! { "getLastErrorModes": { "m": 1 } }),
            "to be an Object, not int",
        ),
        (
            with_settings(rawdoc! { "replicaSetId": ObjectId::from_bytes([0; 12]) }),
            "cannot be null",
        ),
    ];
    for (document, words) in refused {
        let error = parse(document.clone()).unwrap_err();
        assert_eq!(error.code.code(), 93, "{document:?}: {error}");
        assert!(error.message.contains(words), "{document:?}: {error}");
    }
}

#[test]
fn no_more_than_fifty_members_and_seven_votes() {
    let of_many = |count: i64, votes: bool| {
        let mut config = SetConfig::of_one("s", "a:1");
        config.members.extend((1..count).map(|id| MemberConfig {
            votes,
            priority: if votes { 1.0 } else { 0.0 },
            ..MemberConfig::new(id, &format!("b{id}:1"))
        }));
        config
    };
    assert!(of_many(50, false).check().is_ok());
    assert!(of_many(51, false).check().is_err());
    assert!(of_many(7, true).check().is_ok());
    assert!(of_many(8, true).check().is_err());
}

#[test]
fn modes_count_tags_that_members_have() {
    let mut config = SetConfig::of_one("s", "a:1");
    config.members[0].tags = rawdoc! { "dc": "east" };
    config.settings.last_error_modes = rawdoc! { "two": { "dc": 2 } };
    assert!(parse(config.to_document()).is_ok());
    config.settings.last_error_modes = rawdoc! { "none": { "dc": 0 } };
    let error = parse(config.to_document()).unwrap_err();
    assert_eq!(
        error.message,
        "Value of getLastErrorModes.none.dc must be positive, but found 0"
    );
}

#[test]
fn a_successor_has_a_higher_version_and_at_most_one_vote_changed() {
    let old = SetConfig::of_one("s", "a:1");
    let refusal = |old: &SetConfig, new: &SetConfig, force| {
        let error = old.check_successor(new, force).unwrap_err();
        assert_eq!(error.code.code(), 103, "{error}");
        error.message
    };
    let mut new = old.clone();
    assert!(refusal(&old, &new, false).contains("is not greater than {version: 1, term: 0}"));
    assert!(old.check_successor(&new, true).is_ok());
    new.version = 2;
    // Newcomers vote only later, one after the other.
    new.members.push(MemberConfig::new(1, "b:1"));
    new.members.push(MemberConfig::new(2, "c:1"));
    assert!(old.check_successor(&new, false).is_ok());

    let mut shrunk = new.clone();
    shrunk.version = 3;
    shrunk.members.truncate(1);
    assert!(refusal(&new, &shrunk, false).contains("at most 1 voting member"));
    assert!(new.check_successor(&shrunk, true).is_ok());
    let mut changed = new.clone();
    changed.version = 3;
    changed.members[1].id = 9;
    assert!(refusal(&new, &changed, true).contains("MemberId(9)"));
    changed.members[1].id = 1;
    changed.members[1].arbiter_only = true;
    changed.members[1].priority = 0.0;
    assert!(refusal(&new, &changed, true).contains("remove then re-add"));
    let mut foreign = new.clone();
    foreign.settings.replica_set_id = Some(ObjectId::new());
    assert!(refusal(&new, &foreign, true).contains("replica set ID"));
}
