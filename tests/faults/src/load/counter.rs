//! Counters: amounts are added, sums are read linearizably.

use bson::doc;
use mongodb::options::ReadConcern;
use rand::Rng;

use super::COUNTERS;
use super::client::{Trouble, Worker};
use crate::history::Counter;

async fn add(worker: &mut Worker, key: u32) {
    let amount = worker.rng.random_range(1..10_i64);
    let invoked = worker.round.histories.counters.begin();
    let counters = worker.collection("counters");
    let concern = worker.write_concern();
    let update = counters
        .update_one(
            doc! { "_id": i64::from(key) },
            doc! { "$inc": { "sum": amount } },
        )
        .write_concern(concern);
    let outcome = worker.attempt(update).await.map(drop);
    let round = worker.round.clone();
    let action = Counter::Add { key, amount };
    worker
        .note(&round.histories.counters, invoked, action, outcome)
        .await;
}

pub async fn read(worker: &mut Worker, key: u32) -> Result<(), String> {
    let invoked = worker.round.histories.counters.begin();
    let counters = worker.collection("counters");
    let find = counters
        .find_one(doc! { "_id": i64::from(key) })
        .read_concern(ReadConcern::linearizable());
    let outcome = worker.attempt(find).await;
    let found = match &outcome {
        Ok(found) => found
            .as_ref()
            .and_then(|found| found.get_i64("sum").ok())
            .unwrap_or(-1),
        Err(_) => -1,
    };
    let result = match &outcome {
        Ok(_) => Ok(()),
        Err(trouble) => Err(format!("{trouble:?}")),
    };
    let round = worker.round.clone();
    let action = Counter::Read { key, found };
    let outcome = outcome.map(drop).map_err(Trouble::of_a_read);
    worker
        .note(&round.histories.counters, invoked, action, outcome)
        .await;
    result
}

pub async fn work(mut worker: Worker) {
    while worker.round.goes_on() {
        let key = worker.rng.random_range(0..COUNTERS);
        if worker.rng.random_bool(0.8) {
            add(&mut worker, key).await;
        } else {
            let _ = read(&mut worker, key).await;
        }
        worker.rest().await;
    }
}
