use std::borrow::Cow;

use super::*;
use crate::clock::Clock;
use crate::sessions::{SessionId, StatementOutcome};
use banyan_storage::{CatalogChange, IndexBuildDefinition, IndexDefinition, Namespace, RecordId};
use bson::rawdoc;
use proptest::prelude::*;

/// Later than any clock on a wall.
const LATE: Timestamp = Timestamp {
    time: 4_000_000_000,
    increment: 3,
};

fn id(number: u64) -> RecordId {
    RecordId::number(number)
}

fn changes() -> Vec<CatalogChange> {
    let index = |id| IndexDefinition {
        id,
        spec: rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" },
    };
    vec![
        CatalogChange::CreateCollection {
            id: 300,
            namespace: Namespace::new("db", "with.dots"),
            uuid: [9; 16],
            options: rawdoc! { "capped": false },
            indexes: vec![index(1), index(u32::MAX)],
        },
        CatalogChange::DropCollection { id: 1 },
        CatalogChange::RenameCollection {
            id: 1,
            to: Namespace::new("other", "name"),
        },
        CatalogChange::SetOptions {
            id: 2,
            options: rawdoc! {},
        },
        CatalogChange::CreateIndex {
            collection: 1,
            index: index(7),
        },
        CatalogChange::StartIndexBuild {
            collection: 1,
            build: IndexBuildDefinition {
                id: [8; 16],
                duplicates: 90_000,
                indexes: vec![index(9), index(10)],
                options: rawdoc! { "commitQuorum": "majority" },
            },
        },
        CatalogChange::CommitIndexBuild {
            collection: 1,
            build: [8; 16],
        },
        CatalogChange::AbortIndexBuild {
            collection: 1,
            build: [8; 16],
        },
        CatalogChange::DropIndex {
            collection: 1,
            index: 70_000,
        },
        CatalogChange::SetIndexSpec {
            collection: 1,
            index: index(8),
        },
    ]
}

#[test]
fn every_operation_reads_back() {
    let (a, b) = (
        rawdoc! { "_id": 1, "n": 5 },
        rawdoc! { "_id": 1, "n": 6, "more": "x" },
    );
    let mut builder = EntryBuilder::new();
    builder.insert(5, &id(u64::MAX), &a);
    let wholes = vec!["n", "more.$[]"];
    let style = Style::Modifiers { wholes };
    builder.update(5, &id(128), &a, &b, &style);
    builder.delete(5, &id(7), &b);
    builder.noop(&rawdoc! { "msg": "hello" });
    builder.set_config(&rawdoc! { "_id": "set" });
    for change in changes() {
        builder.catalog(&change, &rawdoc! { "ns": "a.b" });
    }
    builder.session = Some(SessionStamp {
        session: SessionId::shared([3; 16]),
        txn_number: 12,
        statements: vec![
            Statement {
                first: 4,
                count: 1000,
                outcome: StatementOutcome::Insert,
            },
            Statement::new(
                -1,
                StatementOutcome::Update {
                    matched: 1,
                    modified: 0,
                    upserted: Some(rawdoc! { "_id": "new" }),
                },
            ),
            Statement::new(
                6,
                StatementOutcome::Update {
                    matched: 300,
                    modified: 299,
                    upserted: None,
                },
            ),
            Statement::new(7, StatementOutcome::Delete { deleted: 1 }),
            Statement::new(
                8,
                StatementOutcome::FindAndModify {
                    reply: rawdoc! { "value": null },
                },
            ),
        ],
    });
    builder.drop_database("gone");
    builder.update(5, &id(128), &b, &a, &Style::Replacement);
    let clock = Clock::new();
    clock.observe(LATE);
    let mut bytes = builder.clone().encode(-5);
    seal(&mut bytes, &clock);
    let entry = Entry::decode(&bytes).unwrap();
    assert_eq!(entry.header.first_time, clock::to_bits(LATE) + 1);
    assert_eq!((entry.time(), entry.wall_ms()), (clock.now(), -5));
    assert_eq!(entry.session, builder.session);
    assert_eq!(entry.collections(), Ok(None));
    let operations: Vec<_> = entry.operations().map(Result::unwrap).collect();
    assert_eq!(operations.len(), builder.operations());
    assert_eq!(
        operations[0],
        Operation::Insert {
            collection: 5,
            record: id(u64::MAX),
            document: &a
        }
    );
    assert_eq!(
        operations[1],
        Operation::Update {
            collection: 5,
            record: id(128),
            before: Cow::Borrowed(&a),
            after: &b,
            style,
        }
    );
    let (rest, last) = operations[5..].split_at(changes().len());
    let read: Vec<_> = rest
        .iter()
        .map(|operation| match operation {
            Operation::Catalog(change, about) => {
                assert_eq!(about.get_str("ns").unwrap(), "a.b");
                change.clone()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(last[0], Operation::DropDatabase { name: "gone" });
    assert!(matches!(
        last[1],
        Operation::Update {
            style: Style::Replacement,
            ..
        }
    ));
    assert_eq!(read, changes());
}

/// The bytes are what other members and later versions have to read: a change here needs a
/// new format number.
#[test]
fn the_format_stays() {
    let mut builder = EntryBuilder::new();
    builder.insert(1, &id(2), &rawdoc! { "_id": 1 });
    let style = Style::Modifiers { wholes: vec!["n"] };
    builder.update(
        1,
        &id(300),
        &rawdoc! { "n": 1_i32 },
        &rawdoc! { "n": 2_i32 },
        &style,
    );
    let mut bytes = builder.encode(1);
    let clock = Clock::new();
    clock.observe(LATE);
    seal(&mut bytes, &clock);
    let expected = concat!(
        "04",
        "0400000000286bee",
        "02000000",
        "0100000000000000",
        "0101020e000000105f69640001000000",
        "00",
        "0201ac020c000000106e00",
        "0200000000",
        "07",
        "04",
        "01",
        "01",
        "01016e",
        "00",
        "01000000",
    );
    let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown, expected);
}

#[test]
fn an_entry_says_whose_documents_it_changes() {
    let (a, b) = (rawdoc! { "_id": 1 }, rawdoc! { "_id": 1, "n": 6 });
    let mut builder = EntryBuilder::new();
    let wholes = vec!["n"];
    builder.noop(&a);
    builder.insert(5, &id(1), &a);
    builder.update(5, &id(1), &a, &b, &Style::Modifiers { wholes });
    builder.update(6, &id(1), &b, &a, &Style::Replacement);
    builder.update(6, &id(1), &a, &b, &Style::Pipeline);
    builder.delete(7, &id(1), &b);
    let bytes = builder.encode(0);
    let entry = Entry::decode(&bytes).unwrap();
    assert_eq!(entry.collections(), Ok(Some(vec![5, 6, 7])));
}

#[test]
fn what_is_not_known_is_refused() {
    let mut builder = EntryBuilder::new();
    builder.noop(&rawdoc! {});
    let good = builder.encode(0);
    let mut other_format = good.clone();
    other_format[0] = 9;
    assert!(Entry::decode(&other_format).is_err());
    let mut other_tag = good;
    other_tag[HEADER_BYTES] = 99;
    let entry = Entry::decode(&other_tag).unwrap();
    assert!(entry.operations().next().unwrap().is_err());
}

#[test]
fn what_no_leader_writes_is_not_let_into_the_log() {
    let clock = Clock::new();
    let sealed = |build: &dyn Fn(&mut EntryBuilder)| {
        let mut builder = EntryBuilder::new();
        build(&mut builder);
        let mut bytes = builder.encode(0);
        seal(&mut bytes, &clock);
        bytes
    };
    let (a, b) = (rawdoc! { "_id": 1, "n": 5 }, rawdoc! { "_id": 1, "n": 6 });
    let good = sealed(&|builder| {
        builder.insert(5, &id(1), &a);
        builder.update(5, &id(1), &a, &b, &Style::Replacement);
        for change in changes() {
            builder.catalog(&change, &rawdoc! { "ns": "a.b" });
        }
    });
    assert_eq!(check(&good), Ok(()));
    let history = sealed(&|builder| {
        builder.session = Some(SessionStamp {
            session: SessionId {
                id: [3; 16],
                user: Some([4; 32]),
            },
            txn_number: 1,
            statements: vec![],
        });
    });
    assert_eq!(check(&history), Ok(()), "nothing but a session");

    assert!(check(b"garbage").is_err());
    assert!(check(&good[..good.len() - 1]).is_err());
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        check(&changed).is_err()
    };
    assert!(with(0, &[9]), "another format");
    assert!(with(1, &[0; 8]), "no time");
    assert!(with(1, &[0xff; 8]), "the end of all times");
    assert!(with(9, &[77]), "another number of operations");
    // The type of `n` in the first document.
    let n = good.windows(3).position(|bytes| bytes == b"\x10n\0");
    assert!(with(n.unwrap(), &[0x77]), "a document that is none");
    let config = sealed(&|builder| builder.set_config(&rawdoc! { "_id": "set" }));
    assert!(check(&config).is_err(), "a configuration without members");
}

proptest! {
    #[test]
    fn an_update_carries_both_documents(
        head in "[ab]{0,40}", before in "[ab]{0,40}", after in "[ab]{0,40}", tail in "[ab]{0,40}"
    ) {
        let a = rawdoc! { "x": format!("{head}{before}{tail}"), "y": before.as_str() };
        let b = rawdoc! { "x": format!("{head}{after}{tail}"), "y": after.as_str() };
        let mut builder = EntryBuilder::new();
        builder.update(1, &RecordId::bytes(b"\x12"), &a, &b, &Style::Pipeline);
        let bytes = builder.encode(0);
        let entry = Entry::decode(&bytes).unwrap();
        let read = entry.operations().next().unwrap().unwrap();
        let expected = Operation::Update {
            collection: 1, record: RecordId::bytes(b"\x12"), before: Cow::Borrowed(&*a), after: &b,
            style: Style::Pipeline,
        };
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn damaged_entries_do_not_panic(
        cut in 0..400_usize, position in 0..400_usize, byte in any::<u8>()
    ) {
        let mut builder = EntryBuilder::new();
        builder.insert(1, &id(2), &rawdoc! { "_id": 1 });
        let style = Style::Modifiers { wholes: vec!["a", "b.c"] };
        builder.update(
            1, &id(2), &rawdoc! { "_id": 1, "a": 1 }, &rawdoc! { "_id": 1, "a": 2 }, &style
        );
        for change in changes() {
            builder.catalog(&change, &rawdoc! {});
        }
        let mut bytes = builder.encode(0);
        if let Some(changed) = bytes.get_mut(position) {
            *changed = byte;
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        if let Ok(entry) = Entry::decode(&bytes) {
            let _ = entry.collections();
            let _ = entry.operations().count();
        }
    }
}
