//! Places in the log, as MongoDB tells them.

use bson::{DateTime, RawDocument, RawDocumentBuf, Timestamp, rawdoc};

/// A time in the log, with the term it was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpTime {
    pub time: Timestamp,
    pub term: i64,
}

impl OpTime {
    pub fn to_document(self) -> RawDocumentBuf {
        rawdoc! { "ts": self.time, "t": self.term }
    }

    pub fn from_document(document: &RawDocument) -> OpTime {
        let zero = Timestamp {
            time: 0,
            increment: 0,
        };
        OpTime {
            time: document.get_timestamp("ts").unwrap_or(zero),
            term: document.get_i64("t").unwrap_or(-1),
        }
    }

    pub fn date(self) -> DateTime {
        DateTime::from_millis(i64::from(self.time.time) * 1000)
    }
}
