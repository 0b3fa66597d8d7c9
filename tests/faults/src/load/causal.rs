//! Causal sessions: each writes its own document on the primary and reads everybody's from
//! secondaries.

use std::collections::BTreeMap;

use bson::{Bson, Document, doc};
use mongodb::ClientSession;
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use rand::Rng;

use super::CAUSAL_KEYS;
use super::client::{Trouble, Worker};
use crate::history::Causal;

/// Versions by key.
type Seen = BTreeMap<u32, i64>;

fn to_list(seen: &Seen) -> Vec<Bson> {
    let pair = |(key, version): (&u32, &i64)| Bson::from(vec![i64::from(*key), *version]);
    seen.iter().map(pair).collect()
}

fn from_list(document: &Document) -> Option<Seen> {
    let pair = |pair: &Bson| {
        let pair = pair.as_array()?;
        let key = u32::try_from(pair.first()?.as_i64()?).ok()?;
        Some((key, pair.get(1)?.as_i64()?))
    };
    document.get_array("saw").ok()?.iter().map(pair).collect()
}

async fn write(worker: &mut Worker, session: &mut ClientSession, own: u32, seen: &mut Seen) {
    let version = worker.round.fresh();
    let invoked = worker.round.histories.causal.begin();
    let causal = worker.collection("causal");
    // An older attempt whose end is not known must not come after this one.
    let filter = doc! { "_id": i64::from(own), "version": { "$lt": version } };
    let set = doc! { "$set": { "version": version, "saw": to_list(seen) } };
    let update = causal.update_one(filter, set).session(session);
    let outcome = worker.attempt(update).await.map(drop);
    if outcome.is_ok() {
        seen.insert(own, version);
    }
    let round = worker.round.clone();
    let action = Causal::Write { key: own, version };
    worker
        .note(&round.histories.causal, invoked, action, outcome)
        .await;
}

async fn read(worker: &mut Worker, session: &mut ClientSession, key: u32, seen: &mut Seen) {
    let invoked = worker.round.histories.causal.begin();
    let causal = worker.collection("causal");
    let preference = match worker.rng.random_range(0..4) {
        0 => ReadPreference::Nearest { options: None },
        1 => ReadPreference::Primary,
        _ => ReadPreference::Secondary { options: None },
    };
    let concern = if worker.rng.random_bool(0.5) {
        ReadConcern::majority()
    } else {
        ReadConcern::local()
    };
    let find = causal
        .find_one(doc! { "_id": i64::from(key) })
        .selection_criteria(SelectionCriteria::ReadPreference(preference))
        .read_concern(concern)
        .session(session);
    let outcome = worker.attempt(find).await;
    let (mut version, mut saw) = (-1, Seen::new());
    if let Ok(Some(found)) = &outcome {
        version = found.get_i64("version").unwrap_or(-1);
        saw = from_list(found).unwrap_or_default();
        let newer = saw.iter().map(|(&key, &version)| (key, version));
        for (key, version) in newer.chain([(key, version)]).collect::<Vec<_>>() {
            let known = seen.entry(key).or_default();
            *known = (*known).max(version);
        }
    }
    let round = worker.round.clone();
    let action = Causal::Read { key, version, saw };
    let outcome = outcome.map(drop).map_err(Trouble::of_a_read);
    worker
        .note(&round.histories.causal, invoked, action, outcome)
        .await;
}

pub async fn work(mut worker: Worker, own: u32) {
    let client = worker.round.clients.session_client().clone();
    let Ok(mut session) = client.start_session().causal_consistency(true).await else {
        return;
    };
    let mut seen = Seen::new();
    while worker.round.goes_on() {
        match worker.rng.random_range(0..10) {
            0..3 => {
                write(&mut worker, &mut session, own, &mut seen).await;
                // At once, before anybody has caught up.
                read(&mut worker, &mut session, own, &mut seen).await;
            }
            _ => {
                let key = worker.rng.random_range(0..CAUSAL_KEYS);
                read(&mut worker, &mut session, key, &mut seen).await;
            }
        }
        worker.rest().await;
    }
}
