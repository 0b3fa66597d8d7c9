//! config.changelog: what happened to the cluster, for people who want to know, and
//! config.actionlog: what the balancer's rounds came to.

use std::sync::atomic::Ordering;
use std::time::Duration;

use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::{DateTime, RawDocumentBuf, rawdoc};

use crate::role::ConfigRole;

/// Entries older than this are thrown away, now and then.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
const TRIM_EVERY: u64 = 1_000;

/// Writes an entry. The log is for people: its failure fails nothing else.
pub async fn note(role: &ConfigRole, what: &str, ns: &str, details: RawDocumentBuf) {
    if let Err(error) = write(role, "changelog", what, ns, details).await {
        tracing::warn!(what, ns, %error, "cannot write to the changelog");
    }
}

/// Writes down what a round of the balancer came to.
pub async fn note_round(role: &ConfigRole, details: RawDocumentBuf) {
    if let Err(error) = write(role, "actionlog", "balancer.round", "", details).await {
        tracing::debug!(%error, "cannot write to the action log");
    }
}

async fn write(
    role: &ConfigRole,
    log: &str,
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
    role.metadata.insert(log, entry).await?;
    let entries = role.changelog_entries.fetch_add(1, Ordering::Relaxed);
    if entries.is_multiple_of(TRIM_EVERY) {
        let oldest = now.timestamp_millis() - KEPT.as_millis() as i64;
        let old = rawdoc! { "time": { "$lt": DateTime::from_millis(oldest) } };
        for log in ["changelog", "actionlog"] {
            role.metadata.remove(log, old.clone()).await?;
        }
    }
    Ok(())
}
