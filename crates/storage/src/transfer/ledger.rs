//! How far an import has come, as it lies in the import's mark.

use std::collections::BTreeMap;

use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::Part;
use crate::keys;

/// What was counted under one id of a part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub entries: u64,
    /// Records: of the documents. Indexes: of the keys, without the index's id.
    pub bytes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, part: Part, key: &[u8], value: &[u8]) {
        self.entries += 1;
        self.bytes += match part {
            Part::Indexes => key.len().saturating_sub(keys::ID_BYTES) as u64,
            Part::Records | Part::Meta => value.len() as u64,
        };
    }

    pub(super) fn merge(&mut self, other: Totals) {
        self.entries += other.entries;
        self.bytes += other.bytes;
    }
}

/// By collection or index id.
pub(super) type Counted = BTreeMap<u32, Totals>;

/// One part's progress.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Everything up to and including this key is in.
    pub frontier: Vec<u8>,
    /// All of the part is in.
    pub done: bool,
    /// What arrived, in the form it travels in.
    pub bytes: u64,
    pub counted: Counted,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    /// The importer's own word for where the data comes from.
    pub source: Vec<u8>,
    pub records: Progress,
    pub indexes: Progress,
}

/// Whether a mark tells how far its import came.
pub(crate) fn can_go_on(mark: &[u8]) -> bool {
    Ledger::decode(mark).is_some()
}

impl Ledger {
    pub fn part(&mut self, part: Part) -> &mut Progress {
        match part {
            Part::Records => &mut self.records,
            Part::Indexes | Part::Meta => &mut self.indexes,
        }
    }

    pub fn encode(&self) -> RawDocumentBuf {
        let mut out = RawDocumentBuf::new();
        out.append(cstr!("source"), binary(&self.source));
        out.append(cstr!("records"), self.records.encode());
        out.append(cstr!("indexes"), self.indexes.encode());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Ledger> {
        let document = RawDocument::from_bytes(bytes).ok()?;
        Some(Ledger {
            source: read_binary(document, "source")?.to_vec(),
            records: Progress::decode(document.get_document("records").ok()?)?,
            indexes: Progress::decode(document.get_document("indexes").ok()?)?,
        })
    }
}

impl Progress {
    fn encode(&self) -> RawDocumentBuf {
        let mut counted = Vec::with_capacity(self.counted.len() * 20);
        for (id, totals) in &self.counted {
            counted.extend_from_slice(&id.to_be_bytes());
            counted.extend_from_slice(&totals.entries.to_be_bytes());
            counted.extend_from_slice(&totals.bytes.to_be_bytes());
        }
        let mut out = RawDocumentBuf::new();
        out.append(cstr!("frontier"), binary(&self.frontier));
        out.append(cstr!("done"), self.done);
        out.append(cstr!("bytes"), self.bytes as i64);
        out.append(cstr!("counted"), binary(&counted));
        out
    }

    fn decode(document: &RawDocument) -> Option<Progress> {
        let mut counted = Counted::new();
        let mut rest = read_binary(document, "counted")?;
        while !rest.is_empty() {
            let (id, after) = rest.split_first_chunk()?;
            let (entries, after) = after.split_first_chunk()?;
            let (bytes, after) = after.split_first_chunk()?;
            let totals = Totals {
                entries: u64::from_be_bytes(*entries),
                bytes: u64::from_be_bytes(*bytes),
            };
            counted.insert(u32::from_be_bytes(*id), totals);
            rest = after;
        }
        Some(Progress {
            frontier: read_binary(document, "frontier")?.to_vec(),
            done: document.get_bool("done").ok()?,
            bytes: document.get_i64("bytes").ok()? as u64,
            counted,
        })
    }
}

fn binary(bytes: &[u8]) -> RawBinaryRef<'_> {
    RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes,
    }
}

fn read_binary<'a>(document: &'a RawDocument, name: &str) -> Option<&'a [u8]> {
    match document.get(name).ok().flatten()? {
        RawBsonRef::Binary(binary) => Some(binary.bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_comes_back_as_it_was_written() {
        let mut ledger = Ledger {
            source: b"somewhere".to_vec(),
            ..Ledger::default()
        };
        let totals = Totals {
            entries: 3,
            bytes: 1 << 40,
        };
        ledger.records.counted.insert(7, totals);
        ledger.records.frontier = vec![0, 255];
        ledger.indexes.done = true;
        ledger.indexes.bytes = 9;
        let bytes = ledger.encode().into_bytes();
        assert_eq!(Ledger::decode(&bytes), Some(ledger));
        assert_eq!(Ledger::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Ledger::decode(b""), None);
    }
}
