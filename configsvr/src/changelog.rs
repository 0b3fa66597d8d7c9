//! config.changelog: what happened to the cluster, for people who want to know.

use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::{DateTime, RawDocumentBuf, rawdoc};

use crate::role::ConfigRole;

/// The log is a capped collection of this size.
pub const BYTES: i64 = 200 * 1024 * 1024;

/// Writes an entry. The log is for people: its failure fails nothing else.
pub async fn note(role: &ConfigRole, what: &str, ns: &str, details: RawDocumentBuf) {
    if let Err(error) = write(role, what, ns, details).await {
        tracing::warn!(what, ns, %error, "cannot write to the changelog");
    }
}

async fn write(
    role: &ConfigRole,
    what: &str,
    ns: &str,
    details: RawDocumentBuf,
) -> Result<(), CommandError> {
    let server = role.address();
    let now = DateTime::now();
    let id = format!("{server}-{}-{}", now.timestamp_millis(), ObjectId::new());
    let entry = rawdoc! {
        "_id": id,
        "server": server,
        "shard": "config",
        "clientAddr": "",
        "time": now,
        "what": what,
        "ns": ns,
        "details": details,
    };
    role.metadata.insert("changelog", entry).await
}
