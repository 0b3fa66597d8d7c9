//! The keys of cluster times as they lie in this member's state, in `admin.system.keys`.
//!
//! A shard has none of its own: its keys are those of the config servers, and its role fetches them.

use std::sync::Arc;
use std::time::Duration;

use banyan_access::cluster_time::{KEYS_COLLECTION, KEYS_DATABASE, read_keys};
use banyan_access::control::AccessControl;
use banyan_execution::Interrupt;
use banyan_replication::machine::Machine;
use banyan_replication::op_observer::Change;
use banyan_replication::replica::Replica;
use banyan_security::cluster_time::SigningKeys;
use banyan_storage::Namespace;
use banyan_wire::CommandError;
use bson::rawdoc;
use tracing::warn;

use super::stored::Stored;
use crate::errors;

/// How long a secondary waits for a key that the primary may have made just now.
const LAG_MAX: Duration = Duration::from_secs(2);
/// How long a shard waits for the config servers.
const FETCH_MAX: Duration = Duration::from_secs(10);

/// Has the keys of this member's state used, and read anew when the log changes them.
pub fn watch(access: &AccessControl, machine: &Machine) {
    if !access.has_users() {
        return;
    }
    access.times.store_here();
    let times = access.times.clone();
    let listener = move |_: Option<Change<'_>>| times.invalidate();
    let namespace = Namespace::new(KEYS_DATABASE, KEYS_COLLECTION);
    machine.watch_collection(namespace, Box::new(listener));
}

/// Reads the keys if they are others than those that are known.
///
/// # Errors
/// They cannot be read: those that are known are older ones, or none.
pub fn read(access: &AccessControl, replica: &Replica) -> Result<(), CommandError> {
    access.times.refresh(|| stored(replica))
}

/// As [`read`], for whoever does with older ones.
pub fn refresh(access: &AccessControl, replica: &Replica) {
    if let Err(error) = read(access, replica) {
        warn!(%error, "cannot read the keys of cluster times");
    }
}

fn stored(replica: &Replica) -> Result<SigningKeys, CommandError> {
    let stored = Stored::new(replica.view());
    let all = errors::parse_filter(&rawdoc! {})?;
    // There are few of them.
    let endless = Interrupt::new(Arc::default(), None);
    let found = stored.find(KEYS_COLLECTION, all, &endless)?;
    Ok(read_keys(found.iter().map(|document| &**document)))
}

/// A key is asked for that is not known here: brings what others know by now.
pub async fn bring(access: &AccessControl, replica: &Replica) {
    if !access.times.are_stored_here() {
        access.times.ask_again(FETCH_MAX).await;
        return;
    }
    // What a primary has not made, nobody has.
    if !replica.is_primary() {
        access.times.ask_again(LAG_MAX).await;
    }
    refresh(access, replica);
}
