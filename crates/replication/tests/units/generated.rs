//! Generated statements, in one unit and one by one.

use std::collections::BTreeMap;

use banyan_consensus::{Committed, StateMachine};
use banyan_replication::machine::Prepared;
use banyan_replication::write::staging::Staging;
use banyan_storage::{Part, Store};
use bson::{RawDocumentBuf, rawdoc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::member::{Member, delete, index, insert, machine, update};

/// One statement of a generated bulk.
enum Statement {
    Insert(RawDocumentBuf),
    Update(RawDocumentBuf, RawDocumentBuf, (bool, bool)),
    Delete(RawDocumentBuf, bool),
}

fn generate(random: &mut StdRng) -> Statement {
    let mut number = |end: i32| random.random_range(0..end);
    let filter = match number(4) {
        0 => rawdoc! { "_id": number(6) },
        1 => rawdoc! { "n": { "$gte": number(4) } },
        2 => rawdoc! { "u": number(6) },
        _ => rawdoc! { "a": number(4) },
    };
    let kinds = (number(3) == 0, number(3) == 0);
    let change = match number(5) {
        0 => rawdoc! { "$set": { "u": number(6) } },
        1 => rawdoc! { "$push": { "a": number(4) } },
        2 => rawdoc! { "$inc": { "u": -1, "n": 1 } },
        3 => rawdoc! { "$set": { "a": [number(4)] } },
        _ => rawdoc! { "$inc": { "n": 1 } },
    };
    match number(8) {
        0..=1 => {
            let (id, n) = (number(6), number(4));
            Statement::Insert(rawdoc! { "_id": id, "u": number(6), "n": n, "a": [n, n + 1] })
        }
        2..=6 => Statement::Update(filter, change, kinds),
        _ => Statement::Delete(filter, kinds.0),
    }
}

async fn execute(staging: &mut Staging<'_>, statement: &Statement) -> String {
    let outcome = match statement {
        Statement::Insert(document) => insert(staging, document).await.map(|()| (0, 1)),
        Statement::Update(filter, change, kinds) => update(staging, filter, change, *kinds).await,
        Statement::Delete(filter, multi) => delete(staging, filter, *multi)
            .await
            .map(|effect| (effect.matched, effect.modified)),
    };
    match outcome {
        Ok(counts) => format!("{counts:?}"),
        Err(error) => format!("{:?}", error.code),
    }
}

/// Statements in one unit come to what they come to one by one, here and on a member that works the
/// entries out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_is_its_statements_one_after_another() {
    let indexes = [
        index("u", rawdoc! { "u": 1 }, true),
        index("a_n", rawdoc! { "a": 1, "n": 1 }, false),
    ];
    let mut member = Member::new().await;
    for seed in 0..60 {
        let (together, single) = (format!("together{seed}"), format!("single{seed}"));
        member = member.with_collection(&together, &indexes).await;
        member = member.with_collection(&single, &indexes).await;
        let mut random = StdRng::seed_from_u64(seed);
        let statements: Vec<_> = (0..25).map(|_| generate(&mut random)).collect();
        for (begun, part) in statements.chunks(12).enumerate() {
            let mut unit = member.staging(&together).await;
            for (at, statement) in part.iter().enumerate() {
                let mut own = member.staging(&single).await;
                let expected = execute(&mut own, statement).await;
                own.finish().await.unwrap();
                let outcome = execute(&mut unit, statement).await;
                assert_eq!(
                    outcome, expected,
                    "seed {seed}, part {begun}, statement {at}"
                );
            }
            unit.finish().await.unwrap();
        }
        let by_id = |documents: Vec<RawDocumentBuf>| -> BTreeMap<String, RawDocumentBuf> {
            let named = documents
                .into_iter()
                .map(|d| (format!("{:?}", d.get("_id")), d));
            named.collect()
        };
        let of_generated = |documents: Vec<RawDocumentBuf>| -> Vec<RawDocumentBuf> {
            // An upsert without an `_id` makes one up.
            documents
                .iter()
                .filter(|d| d.get_i32("_id").is_ok())
                .cloned()
                .collect()
        };
        let (one, other) = (member.committed(&together), member.committed(&single));
        assert_eq!(one.len(), other.len(), "seed {seed}");
        assert_eq!(
            by_id(of_generated(one)),
            by_id(of_generated(other)),
            "seed {seed}"
        );
    }
    let follower = member.directory.path().join("follower");
    std::fs::create_dir_all(&follower).unwrap();
    let (store, machine, _) = machine(&follower);
    let log = member.replica.group.entries(1, u64::MAX).unwrap();
    let committed = log
        .into_iter()
        .map(|(position, data)| Committed::<Prepared> {
            position,
            data,
            prepared: None,
            membership: None,
        });
    machine.apply(committed.collect()).unwrap();
    assert_eq!(
        machine.applied_index(),
        member.replica.machine.applied_index()
    );
    for part in Part::ALL {
        let dump = |store: &Store| {
            let mut pairs = Vec::new();
            let snapshot = store.snapshot();
            let chunk = snapshot.export(part, None, None, usize::MAX, &mut pairs);
            assert!(chunk.unwrap().next.is_none());
            pairs
        };
        assert!(dump(&store) == dump(&member.replica.store), "{part:?}");
    }
}
