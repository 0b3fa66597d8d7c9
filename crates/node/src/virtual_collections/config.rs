//! Collections of the database `config` that are views of what the member keeps in another form:
//! the outcome of each session's last write, and the sessions in use.

use std::sync::Arc;

use banyan_access::identity::UserDigest;
use banyan_execution::Documents;
use banyan_execution::error;
use banyan_replication::sessions::{self, SessionRecord};
use banyan_replication::virtual_collections::{SESSIONS, TRANSACTIONS};
use bson::{DateTime, RawDocumentBuf, rawdoc};

use crate::logical_sessions::Listed;
use crate::node::Node;

pub fn is_view(node: &Node, database: &str, collection: &str) -> bool {
    database == "config"
        && node.replication.is_replica_set()
        && matches!(collection, TRANSACTIONS | SESSIONS)
}

/// The sessions that this member has heard of.
pub fn sessions(node: &Node) -> impl Iterator<Item = RawDocumentBuf> + use<> {
    let sessions = node.sessions.all().into_iter();
    sessions.map(|listed| describe(&listed))
}

/// Those of some users.
pub fn sessions_of(
    node: &Node,
    owners: &[UserDigest],
) -> impl Iterator<Item = RawDocumentBuf> + use<> {
    let owners = owners.to_vec();
    let sessions = node.sessions.all().into_iter();
    sessions
        .filter(move |listed| {
            let user = listed.session.user;
            user.is_some_and(|user| owners.contains(&user))
        })
        .map(|listed| describe(&listed))
}

fn describe(listed: &Listed) -> RawDocumentBuf {
    rawdoc! { "_id": listed.session.document(), "lastUse": listed.last_use }
}

/// The documents of such a collection. `None`: it is an ordinary one.
pub fn documents(node: &Arc<Node>, database: &str, collection: &str) -> Option<Documents> {
    if !is_view(node, database, collection) {
        return None;
    }
    if collection == SESSIONS {
        return Some(Box::new(sessions(node).map(Ok)));
    }
    let records = node
        .replica
        .store
        .snapshot()
        .scan_meta(&[sessions::META_PREFIX]);
    Some(Box::new(records.filter_map(|found| {
        let (key, bytes) = match found {
            Ok(found) => found,
            Err(error) => return Some(Err(error::storage(error))),
        };
        let session = sessions::session_of(&key)?;
        let record = SessionRecord::decode(&bytes).ok()?;
        Some(Ok(rawdoc! {
            "_id": session.document(),
            "txnNum": record.txn_number,
            "lastWriteOpTime": {
                "ts": record.last_write.time(),
                "t": record.last_write.term(),
            },
            "lastWriteDate": DateTime::from_millis(record.last_write.wall_ms),
        }))
    })))
}
