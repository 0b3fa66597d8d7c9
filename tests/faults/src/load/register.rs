//! Registers: read linearizably, written, compared and set.

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use mongodb::Collection;
use mongodb::options::{ReadConcern, ReturnDocument};
use rand::Rng;
use tokio::task::JoinSet;

use super::client::{Trouble, Worker};
use crate::history::{End, Register};

/// How often a member is asked whether it would answer.
const PULSE: Duration = Duration::from_millis(250);
const PULSES_MAX: usize = 60;

async fn find(worker: &Worker, key: u32) -> Result<i64, Trouble> {
    let registers = worker.collection("registers");
    let find = registers.find_one(doc! { "_id": i64::from(key) });
    let found = if worker.round.stale_reads {
        find.read_concern(ReadConcern::local())
    } else {
        find.read_concern(ReadConcern::linearizable())
    };
    let found = worker.attempt(found).await?;
    // Never a value that somebody has written, so that it's seen.
    Ok(found
        .and_then(|found| found.get_i64("value").ok())
        .unwrap_or(-1))
}

pub async fn read(worker: &mut Worker, key: u32) -> Result<i64, String> {
    let invoked = worker.round.histories.registers.begin();
    let outcome = find(worker, key).await;
    let found = *outcome.as_ref().unwrap_or(&-1);
    let action = Register::Read { key, found };
    let round = worker.round.clone();
    let result = match &outcome {
        Ok(found) => Ok(*found),
        Err(trouble) => Err(format!("{trouble:?}")),
    };
    // A read that failed has seen nothing.
    let outcome = outcome.map(drop).map_err(Trouble::of_a_read);
    worker
        .note(&round.histories.registers, invoked, action, outcome)
        .await;
    result
}

async fn write(worker: &mut Worker, key: u32) {
    let value = worker.round.fresh();
    let invoked = worker.round.histories.registers.begin();
    let registers = worker.collection("registers");
    let concern = worker.write_concern();
    let update = registers
        .update_one(
            doc! { "_id": i64::from(key) },
            doc! { "$set": { "value": value } },
        )
        .write_concern(concern);
    let outcome = worker.attempt(update).await.map(drop);
    let round = worker.round.clone();
    let action = Register::Write { key, value };
    worker
        .note(&round.histories.registers, invoked, action, outcome)
        .await;
}

/// Both commands that can do it.
async fn exchange(
    worker: &mut Worker,
    registers: &Collection<Document>,
    (key, expected, value): (u32, i64, i64),
) -> Result<bool, Trouble> {
    let filter = doc! { "_id": i64::from(key), "value": expected };
    let update = doc! { "$set": { "value": value } };
    let concern = worker.write_concern();
    if worker.rng.random_bool(0.5) {
        let update = registers.update_one(filter, update).write_concern(concern);
        Ok(worker.attempt(update).await?.matched_count == 1)
    } else {
        let update = registers
            .find_one_and_update(filter, update)
            .return_document(ReturnDocument::Before)
            .write_concern(concern);
        Ok(worker.attempt(update).await?.is_some())
    }
}

async fn compare_and_set(worker: &mut Worker, key: u32, expected: i64) {
    let value = worker.round.fresh();
    let invoked = worker.round.histories.registers.begin();
    let registers = worker.collection("registers");
    let outcome = exchange(worker, &registers, (key, expected, value)).await;
    let done = matches!(outcome, Ok(true));
    let action = Register::CompareAndSet {
        key,
        expected,
        value,
        done,
    };
    let round = worker.round.clone();
    worker
        .note(
            &round.histories.registers,
            invoked,
            action,
            outcome.map(drop),
        )
        .await;
}

pub async fn work(mut worker: Worker) {
    let mut seen = None;
    while worker.round.goes_on() {
        let key = worker.round.registers.next();
        match (worker.rng.random_range(0..10), seen) {
            (0..4, _) => {
                seen = read(&mut worker, key).await.ok().map(|value| (key, value));
            }
            (4..7, _) => write(&mut worker, key).await,
            (_, Some((key, value))) => {
                compare_and_set(&mut worker, key, value).await;
                seen = None;
            }
            // What it was to begin with, as good a guess as any.
            (_, None) => compare_and_set(&mut worker, key, 0).await,
        }
        worker.rest().await;
    }
}

/// Asks one member again and again without waiting for its answers: if it believes to lead when it
/// doesn't any more, one of them is stale.
pub async fn pulse(worker: Worker) {
    let worker = Arc::new(worker);
    let mut asking = JoinSet::new();
    let mut beat = tokio::time::interval(PULSE);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while worker.round.goes_on() {
        beat.tick().await;
        while asking.try_join_next().is_some() {}
        if asking.len() >= PULSES_MAX {
            continue;
        }
        let worker = worker.clone();
        asking.spawn(async move {
            let key = worker.round.registers.current();
            let invoked = worker.round.histories.registers.begin();
            // Refusals say nothing, and there are many.
            if let Ok(found) = find(&worker, key).await {
                let action = Register::Read { key, found };
                let who = (worker.client, &*worker.via());
                worker
                    .round
                    .histories
                    .registers
                    .end(who, invoked, End::Ok, action, None);
            }
        });
    }
    // They end by themselves: their patience is limited.
    while asking.join_next().await.is_some() {}
}
