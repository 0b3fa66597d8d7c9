//! Lists: elements are appended, whole lists are read, linearizably or from anywhere.

use bson::{Bson, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use rand::Rng;

use super::client::{Trouble, Worker};
use crate::history::List;

async fn append(worker: &mut Worker, key: u32) {
    let element = worker.round.fresh();
    let invoked = worker.round.histories.lists.begin();
    let lists = worker.collection("lists");
    let concern = worker.write_concern();
    let update = lists
        .update_one(
            doc! { "_id": i64::from(key) },
            doc! { "$push": { "list": element } },
        )
        .write_concern(concern);
    let outcome = worker.attempt(update).await.map(drop);
    let round = worker.round.clone();
    let action = List::Append { key, element };
    worker
        .note(&round.histories.lists, invoked, action, outcome)
        .await;
}

pub async fn read(worker: &mut Worker, key: u32, fresh: bool) -> Result<(), String> {
    let invoked = worker.round.histories.lists.begin();
    let lists = worker.collection("lists");
    let mut find = lists.find_one(doc! { "_id": i64::from(key) });
    if fresh {
        find = find.read_concern(ReadConcern::linearizable());
    } else {
        let anywhere = match worker.rng.random_range(0..3) {
            0 => ReadPreference::Nearest { options: None },
            1 => ReadPreference::SecondaryPreferred { options: None },
            _ => ReadPreference::Secondary { options: None },
        };
        find = find.selection_criteria(SelectionCriteria::ReadPreference(anywhere));
    }
    let outcome = worker.attempt(find).await;
    let elements = |document: bson::Document| -> Option<Vec<i64>> {
        document
            .get_array("list")
            .ok()?
            .iter()
            .map(Bson::as_i64)
            .collect()
    };
    let found = match &outcome {
        // A member that lags far may not even have the document; a fresh read finds a list.
        Ok(None) if !fresh => Vec::new(),
        Ok(found) => found.clone().and_then(elements).unwrap_or(vec![-1]),
        Err(_) => Vec::new(),
    };
    let result = match &outcome {
        Ok(_) => Ok(()),
        Err(trouble) => Err(format!("{trouble:?}")),
    };
    let round = worker.round.clone();
    let action = List::Read { key, found, fresh };
    // A read that failed has seen nothing.
    let outcome = outcome.map(drop).map_err(Trouble::of_a_read);
    worker
        .note(&round.histories.lists, invoked, action, outcome)
        .await;
    result
}

pub async fn work(mut worker: Worker) {
    while worker.round.goes_on() {
        let key = worker.round.lists.next();
        if worker.rng.random_bool(0.7) {
            append(&mut worker, key).await;
        } else {
            let _ = read(&mut worker, key, true).await;
        }
        worker.rest().await;
    }
}

pub async fn read_anywhere(mut worker: Worker) {
    while worker.round.goes_on() {
        let key = worker.round.lists.current();
        let _ = read(&mut worker, key, false).await;
        worker.rest().await;
    }
}
