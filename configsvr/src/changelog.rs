//! config.changelog: what happened to the cluster, for people who want to know, and
//! config.actionlog: what the balancer's rounds came to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::{DateTime, RawDocumentBuf, rawdoc};

use crate::metadata::Metadata;

/// Entries older than this are thrown away, now and then.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
const TRIM_EVERY: u64 = 1_000;

pub struct Changelog {
    /// `name:port` of the server that writes.
    address: String,
    entries: AtomicU64,
}

impl Changelog {
    pub fn new(address: String) -> Changelog {
        Changelog {
            address,
            entries: AtomicU64::new(0),
        }
    }

    /// Writes an entry. The log is for people: its failure fails nothing else.
    pub async fn note(&self, metadata: &Metadata, what: &str, ns: &str, details: RawDocumentBuf) {
        if let Err(error) = self.write(metadata, "changelog", what, ns, details).await {
            tracing::warn!(what, ns, %error, "cannot write to the changelog");
        }
    }

    /// Writes down what a round of the balancer came to.
    pub async fn note_round(&self, metadata: &Metadata, details: RawDocumentBuf) {
        let written = self.write(metadata, "actionlog", "balancer.round", "", details);
        if let Err(error) = written.await {
            tracing::debug!(%error, "cannot write to the action log");
        }
    }

    async fn write(
        &self,
        metadata: &Metadata,
        log: &str,
        what: &str,
        ns: &str,
        details: RawDocumentBuf,
    ) -> Result<(), CommandError> {
        let server = self.address.as_str();
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
        metadata.insert(log, entry).await?;
        let entries = self.entries.fetch_add(1, Ordering::Relaxed);
        if entries.is_multiple_of(TRIM_EVERY) {
            let oldest = now.timestamp_millis() - KEPT.as_millis() as i64;
            let old = rawdoc! { "time": { "$lt": DateTime::from_millis(oldest) } };
            for log in ["changelog", "actionlog"] {
                metadata.remove(log, old.clone()).await?;
            }
        }
        Ok(())
    }
}
