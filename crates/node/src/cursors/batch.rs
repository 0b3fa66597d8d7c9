//! The reply of a cursor command, written once, straight into the bytes that go out.

use std::collections::VecDeque;

use banyan_wire::{CommandError, ErrorCode};
use bson::spec::ElementType;
use bson::{RawDocument, RawDocumentBuf, Timestamp};

use banyan_execution::Row;

/// Documents in a first batch when the client names no size.
pub const FIRST_BATCH_DEFAULT: u64 = 101;

/// A batch holds at most this many bytes of documents, and at least one document.
pub const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A batch that has become so large may become a full one, and is not moved again and again.
const GROWS_BELOW: usize = 256 * 1024;
/// What an element of the array takes beside its document.
const ELEMENT_BYTES_MAX: usize = 24;

/// `{cursor: {firstBatch: […], id, ns}, ok: 1}` while it is being written.
pub struct Batch {
    bytes: Vec<u8>,
    cursor_at: usize,
    array_at: usize,
    count: u64,
    bytes_max: usize,
    index: Digits,
    /// Told in the reply, for a read of a certain time.
    pub at_cluster_time: Option<Timestamp>,
    /// Told in the reply, by a cursor that follows the log: where a client can go on.
    resume_token: Option<RawDocumentBuf>,
    invalidated: bool,
}

/// Why no more rows were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// It holds as much as it may.
    Full,
    /// There are no more.
    Ended,
    /// It was not to go on.
    Stopped,
}

impl Batch {
    pub fn first(capacity: usize) -> Batch {
        Batch::new(b"firstBatch\0", capacity)
    }

    pub fn next(capacity: usize) -> Batch {
        Batch::new(b"nextBatch\0", capacity)
    }

    fn new(name: &[u8], capacity: usize) -> Batch {
        let mut bytes = Vec::with_capacity(capacity + 128);
        bytes.extend_from_slice(&[0; 4]);
        bytes.push(ElementType::EmbeddedDocument as u8);
        bytes.extend_from_slice(b"cursor\0");
        let cursor_at = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        bytes.push(ElementType::Array as u8);
        bytes.extend_from_slice(name);
        let array_at = bytes.len();
        bytes.extend_from_slice(&[0; 4]);
        Batch {
            bytes,
            cursor_at,
            array_at,
            count: 0,
            bytes_max: BATCH_BYTES_MAX,
            index: Digits::default(),
            at_cluster_time: None,
            resume_token: None,
            invalidated: false,
        }
    }

    /// It holds no more bytes of documents than that, and at least one document.
    pub fn limit_bytes(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.min(BATCH_BYTES_MAX);
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Of the documents.
    pub fn bytes(&self) -> usize {
        self.bytes.len() - self.array_at
    }

    /// Its documents by themselves again.
    pub fn into_rows(self) -> VecDeque<Row> {
        let elements = self.bytes.get(self.array_at + 4..).unwrap_or_default();
        let mut rows = VecDeque::new();
        let mut rest = elements;
        // Each is a type, an index that ends with a zero byte, and a document with its length.
        while let Some(at) = rest.iter().skip(1).position(|byte| *byte == 0) {
            let document = &rest[at + 2..];
            let length = document
                .first_chunk()
                .map(|bytes| u32::from_le_bytes(*bytes));
            let Some((document, after)) =
                length.and_then(|length| document.split_at_checked(length as usize))
            else {
                break;
            };
            let Ok(document) = RawDocumentBuf::from_bytes(document.to_vec()) else {
                break;
            };
            rows.push_back(Row::Owned(document));
            rest = after;
        }
        rows
    }

    pub fn has_room_for(&self, document: &RawDocument) -> bool {
        self.count == 0 || self.bytes() + document.as_bytes().len() <= self.bytes_max
    }

    pub fn push(&mut self, document: &RawDocument) {
        let left = self.bytes.capacity() - self.bytes.len();
        let wanted = document.as_bytes().len() + ELEMENT_BYTES_MAX;
        if left < wanted && self.bytes.len().max(wanted) >= GROWS_BELOW {
            // Room that is not used costs nothing: the system gives memory page by page.
            let room = self.bytes_max.saturating_sub(self.bytes.len());
            self.bytes
                .reserve(room.max(document.as_bytes().len()) + GROWS_BELOW);
        }
        self.bytes.push(ElementType::EmbeddedDocument as u8);
        self.index.write(&mut self.bytes);
        self.index.increment();
        self.bytes.extend_from_slice(document.as_bytes());
        self.count += 1;
    }

    /// What a cursor that follows the log has to say about this batch.
    pub fn follow(&mut self, resume_token: RawDocumentBuf, invalidated: bool) {
        self.resume_token = Some(resume_token);
        self.invalidated = invalidated;
    }

    pub fn finish(mut self, id: i64, namespace: &str) -> Result<RawDocumentBuf, CommandError> {
        close(&mut self.bytes, self.array_at);
        if let Some(token) = &self.resume_token {
            self.bytes.push(ElementType::EmbeddedDocument as u8);
            self.bytes.extend_from_slice(b"postBatchResumeToken\0");
            self.bytes.extend_from_slice(token.as_bytes());
        }
        if self.invalidated {
            self.bytes.push(ElementType::Boolean as u8);
            self.bytes.extend_from_slice(b"invalidated\0\x01");
        }
        self.bytes.push(ElementType::Int64 as u8);
        self.bytes.extend_from_slice(b"id\0");
        self.bytes.extend_from_slice(&id.to_le_bytes());
        self.bytes.push(ElementType::String as u8);
        self.bytes.extend_from_slice(b"ns\0");
        self.bytes
            .extend_from_slice(&(namespace.len() as i32 + 1).to_le_bytes());
        self.bytes.extend_from_slice(namespace.as_bytes());
        self.bytes.push(0);
        if let Some(time) = self.at_cluster_time {
            self.bytes.push(ElementType::Timestamp as u8);
            self.bytes.extend_from_slice(b"atClusterTime\0");
            self.bytes.extend_from_slice(&time.increment.to_le_bytes());
            self.bytes.extend_from_slice(&time.time.to_le_bytes());
        }
        close(&mut self.bytes, self.cursor_at);
        self.bytes.push(ElementType::Double as u8);
        self.bytes.extend_from_slice(b"ok\0");
        self.bytes.extend_from_slice(&1_f64.to_le_bytes());
        close(&mut self.bytes, 0);
        RawDocumentBuf::from_bytes(self.bytes).map_err(|error| {
            CommandError::new(
                ErrorCode::InternalError,
                format!("a reply is malformed: {error}"),
            )
        })
    }
}

/// Ends the document that starts at `at`.
fn close(bytes: &mut Vec<u8>, at: usize) {
    bytes.push(0);
    let length = (bytes.len() - at) as i32;
    bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// A reply of one batch that nothing follows.
pub fn single(
    namespace: &str,
    rows: impl IntoIterator<Item = Row>,
) -> Result<RawDocumentBuf, CommandError> {
    let mut batch = Batch::first(256);
    for row in rows {
        batch.push(&row);
    }
    batch.finish(0, namespace)
}

/// An array index in decimal, counted up in place.
struct Digits {
    digits: [u8; 20],
    start: usize,
}

impl Default for Digits {
    fn default() -> Self {
        Digits {
            digits: [b'0'; 20],
            start: 19,
        }
    }
}

impl Digits {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.digits[self.start..]);
        out.push(0);
    }

    fn increment(&mut self) {
        let mut at = self.digits.len() - 1;
        while self.digits[at] == b'9' {
            self.digits[at] = b'0';
            at -= 1;
        }
        self.digits[at] += 1;
        self.start = self.start.min(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_batch_reads_as_mongodb_writes_it() {
        let mut batch = Batch::first(0);
        for number in 0..12 {
            batch.push(&rawdoc! { "_id": number });
        }
        let reply = batch.finish(7, "test.posts").unwrap();
        let documents: Vec<_> = (0..12).map(|n| rawdoc! { "_id": n }).collect();
        let mut array = bson::RawArrayBuf::new();
        documents
            .into_iter()
            .for_each(|document| array.push(document));
        let expected = rawdoc! {
            "cursor": { "firstBatch": array, "id": 7_i64, "ns": "test.posts" },
            "ok": 1.0,
        };
        assert_eq!(reply, expected);
    }

    #[test]
    fn the_documents_of_a_batch_are_told_apart_again() {
        let mut batch = Batch::next(0);
        let documents = (0..120).map(|n| rawdoc! { "_id": n, "a": "b\u{0}" });
        documents.clone().for_each(|document| batch.push(&document));
        let rows = batch.into_rows();
        let rows: Vec<_> = rows.iter().map(|row| RawDocument::to_owned(row)).collect();
        assert_eq!(rows, documents.collect::<Vec<_>>());
        assert!(Batch::next(0).into_rows().is_empty());
    }

    #[test]
    fn indexes_count_past_the_nines() {
        let mut digits = Digits::default();
        let mut text = Vec::new();
        for _ in 0..1000 {
            digits.increment();
        }
        digits.write(&mut text);
        assert_eq!(text, b"1000\0");
    }
}
