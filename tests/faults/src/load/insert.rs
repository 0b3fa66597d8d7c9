//! Inserts: documents of one's own, alone or several at once, and claims that only one can have.

use bson::{Document, doc};
use rand::Rng;

use super::client::{Trouble, Worker};
use crate::history::Insert;

/// So that logs grow, and are cut.
const BALLAST_BYTES_MAX: usize = 24 << 10;

async fn own(worker: &mut Worker) {
    let count = if worker.rng.random_bool(0.3) { 4 } else { 1 };
    let ids: Vec<i64> = (0..count).map(|_| worker.round.fresh()).collect();
    // The driver gives each an `_id`; the id that counts is in no unique index, so that a document
    // that was inserted twice is there twice.
    let ballast = "x".repeat(worker.rng.random_range(0..BALLAST_BYTES_MAX));
    let document = |id: &i64| doc! { "id": *id, "ballast": &ballast };
    let documents: Vec<Document> = ids.iter().map(document).collect();
    let invoked = worker.round.histories.inserts.begin();
    let inserts = worker.collection("inserts");
    let concern = worker.write_concern();
    let outcome = match &documents[..] {
        [one] => {
            let insert = inserts.insert_one(one).write_concern(concern);
            worker.attempt(insert).await.map(drop)
        }
        several => {
            let insert = inserts.insert_many(several).write_concern(concern);
            worker.attempt(insert).await.map(drop)
        }
    };
    let duplicate = matches!(outcome, Err(Trouble::Duplicate(_)));
    let round = worker.round.clone();
    let action = Insert::Own { ids, duplicate };
    worker
        .note(&round.histories.inserts, invoked, action, outcome)
        .await;
}

/// Whichever number is next, together with the others who try the same.
async fn claim(worker: &mut Worker, claim: i64) {
    let attempt = worker.round.fresh();
    let invoked = worker.round.histories.inserts.begin();
    let claims = worker.collection("claims");
    let concern = worker.write_concern();
    let insert = claims
        .insert_one(doc! { "claim": claim, "attempt": attempt })
        .write_concern(concern);
    let outcome = worker.attempt(insert).await.map(drop);
    let duplicate = matches!(outcome, Err(Trouble::Duplicate(_)));
    let round = worker.round.clone();
    let action = Insert::Claim {
        claim,
        attempt,
        duplicate,
    };
    worker
        .note(&round.histories.inserts, invoked, action, outcome)
        .await;
}

pub async fn work(mut worker: Worker) {
    while worker.round.goes_on() {
        if worker.rng.random_bool(0.6) {
            own(&mut worker).await;
        } else {
            // Everybody is here at about the same time.
            let slot = worker.round.start.elapsed().as_millis() / 40;
            claim(&mut worker, i64::try_from(slot).unwrap_or(i64::MAX)).await;
        }
        worker.rest().await;
    }
}
