//! The read and write concern of commands that name none: `setDefaultRWConcern`.
//!
//! They are one replicated document, so every member of a set knows them, and a member that becomes
//! the primary goes on with them. In a cluster they belong to the config servers, and routers put
//! them into what they send; a shard has none of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use banyan_replication::clock;
use banyan_replication::set::write_concern::{Acknowledgement, Provenance, WriteConcern};
use banyan_wire::{CommandError, ErrorCode};
use bson::{DateTime, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};
use parking_lot::RwLock;

use crate::read_concern::concern::{Level, ReadConcern};

pub const COLLECTION: &str = "settings";
pub const ID: &str = "ReadWriteConcernDefaults";

/// What was set, if anything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Defaults {
    pub read: Option<Level>,
    pub write: Option<WriteConcern>,
    pub updated: Option<(Timestamp, DateTime)>,
}

impl Defaults {
    /// As they lie in `config.settings`.
    pub fn from_document(document: &RawDocument) -> Result<Defaults, CommandError> {
        let mut defaults = Defaults::default();
        if let Ok(read) = document.get_document("defaultReadConcern") {
            defaults.read = ReadConcern::parse(read)?.level;
        }
        if let Ok(write) = document.get_document("defaultWriteConcern") {
            let mut concern = WriteConcern::parse(write)?;
            concern.provenance = Provenance::CustomDefault;
            defaults.write = Some(concern);
        }
        defaults.updated = document
            .get_timestamp("updateOpTime")
            .ok()
            .zip(document.get_datetime("updateWallClockTime").ok());
        Ok(defaults)
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut out = rawdoc! { "_id": ID };
        if let Some(level) = self.read {
            out.append(
                cstr!("defaultReadConcern"),
                rawdoc! { "level": level.name() },
            );
        }
        if let Some(write) = &self.write {
            out.append(cstr!("defaultWriteConcern"), write.to_document());
        }
        if let Some((time, wall)) = self.updated {
            out.append(cstr!("updateOpTime"), time);
            out.append(cstr!("updateWallClockTime"), wall);
        }
        out
    }

    /// The reply's fields: what holds, and where that comes from.
    pub fn describe(&self, in_memory: bool, read_at: DateTime) -> RawDocumentBuf {
        let source = |set: bool| if set { "global" } else { "implicit" };
        let level = self.read.unwrap_or(Level::Local);
        let write = self.write.clone().unwrap_or_default();
        let mut out = rawdoc! {
            "defaultReadConcern": { "level": level.name() },
            "defaultWriteConcern": write.to_document(),
        };
        if let Some((time, wall)) = self.updated {
            out.append(cstr!("updateOpTime"), time);
            out.append(cstr!("updateWallClockTime"), wall);
        }
        out.append(
            cstr!("defaultWriteConcernSource"),
            source(self.write.is_some()),
        );
        out.append(
            cstr!("defaultReadConcernSource"),
            source(self.read.is_some()),
        );
        if in_memory {
            out.append(cstr!("inMemory"), true);
        }
        out.append(cstr!("localUpdateWallClockTime"), read_at);
        out
    }

    /// What `setDefaultRWConcern` makes of them. An empty read concern takes the default back; a
    /// write concern, once set, can only be replaced.
    pub fn changed(
        &self,
        read: Option<&RawDocument>,
        write: Option<&RawDocument>,
    ) -> Result<Defaults, CommandError> {
        if read.is_none() && write.is_none() {
            return Err(bad_value(
                "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must \
                 be present",
            ));
        }
        let mut next = self.clone();
        if let Some(write) = write {
            next.write = acceptable_write(write)?;
            if next.write.is_none() && self.write.is_some() {
                return Err(CommandError::new(
                    ErrorCode::IllegalOperation,
                    "The global default write concern cannot be unset once it is set.",
                ));
            }
        }
        if let Some(read) = read {
            next.read = acceptable_read(read)?;
        }
        Ok(next)
    }
}

fn bad_value(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::BadValue, text)
}

fn acceptable_write(document: &RawDocument) -> Result<Option<WriteConcern>, CommandError> {
    if document.is_empty() {
        return Ok(None);
    }
    let mut concern = WriteConcern::parse(document)?;
    if concern.is_unacknowledged() {
        return Err(bad_value(
            "Unacknowledged write concern is not suitable for the default write concern",
        ));
    }
    if document
        .get("provenance")
        .is_ok_and(|field| field.is_some())
    {
        return Err(bad_value(
            "'provenance' must be unset in default write concern",
        ));
    }
    if !concern.explicit {
        concern.w = Acknowledgement::Members(1);
    }
    concern.provenance = Provenance::CustomDefault;
    Ok(Some(concern))
}

fn acceptable_read(document: &RawDocument) -> Result<Option<Level>, CommandError> {
    if document.is_empty() {
        return Ok(None);
    }
    let concern = ReadConcern::parse(document)?;
    for (name, given) in [
        ("afterClusterTime", concern.after.is_some()),
        ("atClusterTime", concern.at.is_some()),
    ] {
        if given {
            return Err(bad_value(format!(
                "'{name}' is not suitable for the default read concern"
            )));
        }
    }
    if concern.has_provenance {
        return Err(bad_value(
            "'provenance' must be unset in default read concern",
        ));
    }
    match concern.level {
        Some(level @ (Level::Snapshot | Level::Linearizable)) => Err(bad_value(format!(
            "level: '{}' is not suitable for the default read concern",
            level.name()
        ))),
        level => Ok(level),
    }
}

/// The defaults as this process last read them. Every command asks, so asking is cheap.
#[derive(Debug, Default)]
pub struct KnownDefaults {
    known: RwLock<(Arc<Defaults>, i64)>,
    /// Whoever becomes the primary reads them again first.
    term: AtomicU64,
}

impl KnownDefaults {
    /// What was read last; `read` brings it up to date first if this member leads in a term of
    /// which it has not read them.
    pub fn get(
        &self,
        leader_term: u64,
        read: impl FnOnce() -> Result<Defaults, CommandError>,
    ) -> Arc<Defaults> {
        let is_known = leader_term == 0 || self.term.load(Ordering::Acquire) == leader_term;
        if !is_known && let Ok(read) = read() {
            self.note(read);
            self.term.store(leader_term, Ordering::Release);
        }
        self.known.read().0.clone()
    }

    /// That is what holds now.
    pub fn note(&self, read: Defaults) -> Arc<Defaults> {
        let mut known = self.known.write();
        if *known.0 != read {
            known.0 = Arc::new(read);
        }
        known.1 = clock::wall_ms();
        known.0.clone()
    }

    pub fn read_at(&self) -> DateTime {
        DateTime::from_millis(self.known.read().1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_reads_back() {
        let time = clock::from_bits(7 << 32 | 3);
        let write = rawdoc! { "w": 2, "wtimeout": 7 };
        let read = rawdoc! { "level": "majority" };
        let mut defaults = Defaults::default()
            .changed(Some(&read), Some(&write))
            .unwrap();
        defaults.updated = Some((time, DateTime::from_millis(5)));
        let again = Defaults::from_document(&defaults.to_document()).unwrap();
        assert_eq!(again, defaults);
        let shown = defaults.describe(false, DateTime::from_millis(9));
        assert_eq!(shown.get_str("defaultReadConcernSource").unwrap(), "global");
        assert_eq!(shown.get_document("defaultWriteConcern").unwrap(), &*write);
        // One that does not say how many asks for one.
        let journaled = Defaults::default().changed(None, Some(&rawdoc! { "j": true }));
        let shown = journaled.unwrap().describe(false, DateTime::from_millis(9));
        let write = rawdoc! { "w": 1, "j": true, "wtimeout": 0 };
        assert_eq!(shown.get_document("defaultWriteConcern").unwrap(), &*write);
        let implicit = Defaults::default().describe(true, DateTime::from_millis(9));
        let write = rawdoc! { "w": "majority", "wtimeout": 0 };
        assert_eq!(
            implicit.get_document("defaultWriteConcern").unwrap(),
            &*write
        );
    }

    #[test]
    fn a_write_concern_cannot_be_unset_and_a_read_concern_can() {
        let write = rawdoc! { "w": 1 };
        let read = rawdoc! { "level": "majority" };
        let set = Defaults::default()
            .changed(Some(&read), Some(&write))
            .unwrap();
        let empty = RawDocumentBuf::new();
        assert_eq!(set.changed(None, Some(&empty)).unwrap_err().code.code(), 20);
        let unset = set.changed(Some(&empty), None).unwrap();
        assert_eq!(unset.read, None);
        let kept = unset.write.map(|concern| concern.w);
        assert_eq!(kept, Some(Acknowledgement::Members(1)));
    }

    #[test]
    fn what_does_not_suit_every_command_is_refused() {
        let refused = |read: Option<RawDocumentBuf>, write: Option<RawDocumentBuf>| {
            let outcome = Defaults::default().changed(read.as_deref(), write.as_deref());
            outcome.unwrap_err().code.code()
        };
        assert_eq!(refused(None, None), 2);
        assert_eq!(refused(None, Some(rawdoc! { "w": 0 })), 2);
        assert_eq!(refused(Some(rawdoc! { "level": "snapshot" }), None), 2);
        assert_eq!(refused(Some(rawdoc! { "level": "linearizable" }), None), 2);
        assert_eq!(refused(Some(rawdoc! { "level": "x" }), None), 9);
        let provenance = rawdoc! { "w": 1, "provenance": "clientSupplied" };
        assert_eq!(refused(None, Some(provenance)), 2);
    }
}
