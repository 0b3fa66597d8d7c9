//! What `$currentOp` tells of cursors that nobody reads at the moment.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use banyan_execution::PlanSummaryStats;
use bson::{DateTime, RawDocumentBuf, cstr, rawdoc};

use super::cursor::{Cursor, Given, Opener, Tail};

/// A cursor as it was when it was asked for.
pub struct IdleCursor {
    id: i64,
    namespace: String,
    opener: Opener,
    opened: SystemTime,
    last_used: SystemTime,
    given: Given,
    tail: Tail,
    no_timeout: bool,
    origin: Option<Arc<RawDocumentBuf>>,
    plan: Option<Arc<PlanSummaryStats>>,
}

impl IdleCursor {
    /// Nobody has used it for so long.
    pub(super) fn new(id: i64, cursor: &Cursor, unused: Duration) -> IdleCursor {
        let now = SystemTime::now();
        let before = |time: Duration| now.checked_sub(time).unwrap_or(now);
        IdleCursor {
            id,
            namespace: cursor.namespace.clone(),
            opener: cursor.opener,
            opened: before(cursor.opened.elapsed()),
            last_used: before(unused),
            given: cursor.given,
            tail: cursor.tail,
            no_timeout: cursor.no_timeout,
            origin: cursor.origin.clone(),
            plan: cursor.stats.clone(),
        }
    }

    /// `host`: the member's own address.
    pub fn describe(&self, host: &str) -> RawDocumentBuf {
        let mut document = rawdoc! {
            "type": "idleCursor",
            "host": host,
            "ns": self.namespace.as_str(),
        };
        if let Some(session) = &self.opener.session {
            document.append(cstr!("lsid"), session.document());
        }
        if let Some(plan) = &self.plan {
            document.append(cstr!("planSummary"), plan.summary.to_string());
        }
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut cursor = rawdoc! {
            "cursorId": self.id,
            "createdDate": DateTime::from_system_time(self.opened),
            "lastAccessDate": DateTime::from_system_time(self.last_used),
            "nDocsReturned": number(self.given.documents),
            "nBatchesReturned": number(self.given.batches),
            "noCursorTimeout": self.no_timeout,
            "tailable": self.tail != Tail::Ends,
            "awaitData": self.tail == Tail::Waits,
        };
        if let Some(origin) = &self.origin {
            cursor.append(cstr!("originatingCommand"), &**origin);
        }
        document.append(cstr!("cursor"), cursor);
        document
    }
}
