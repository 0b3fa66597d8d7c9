//! Which databases are at home here.
//!
//! Collections that are not sharded live on their database's primary shard. A request for one
//! carries the version of the database that its router knows; a database that was dropped and made
//! again may have another home, and then the request must not run here.

use std::collections::HashMap;

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};
use parking_lot::RwLock;

/// Requests may name as many as they like; beyond this many all are read again.
const DATABASES_MAX: usize = 10_000;

#[derive(Default)]
pub struct Databases {
    known: RwLock<HashMap<String, Home>>,
}

struct Home {
    /// The term as primary in which this was read.
    term: u64,
    /// `None` if the database does not exist or lives elsewhere.
    version: Option<RawDocumentBuf>,
}

impl Databases {
    /// Whether the request's version is the one known here. The answer comes from memory.
    pub fn agrees(&self, database: &str, received: &RawDocument, term: u64) -> bool {
        let known = self.known.read();
        known.get(database).is_some_and(|home| {
            let version = home.version.as_ref();
            home.term == term && version.is_some_and(|v| v.as_bytes() == received.as_bytes())
        })
    }

    /// What was read of a database in a term: its version, if its home is here.
    pub fn note(&self, database: &str, term: u64, version: Option<RawDocumentBuf>) {
        let mut known = self.known.write();
        if known.len() >= DATABASES_MAX {
            known.clear();
        }
        known.insert(database.to_owned(), Home { term, version });
    }

    pub fn refusal(&self, database: &str, received: &RawDocument) -> CommandError {
        let mut info = rawdoc! { "db": database, "vReceived": received.to_owned() };
        if let Some(version) = self
            .known
            .read()
            .get(database)
            .and_then(|h| h.version.as_ref())
        {
            info.append(cstr!("vWanted"), version.clone());
        }
        let message = format!("version mismatch for database {database}");
        CommandError::new(ErrorCode::StaleDbVersion, message).with_extra(info)
    }
}
