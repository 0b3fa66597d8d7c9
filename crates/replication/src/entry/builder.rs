//! Writing an entry.

use banyan_storage::{CatalogChange, CollectionId, IndexDefinition, RecordId, RecordIdRef};
use bson::RawDocument;

use super::header::{FORMAT, HEADER_BYTES};
use super::operation::{NO_NUMBER, Style, tag};
use crate::codec::{put_session, put_varint};
use crate::sessions::SessionStamp;
use crate::sessions::histories::History;

/// What a document in an entry brings along, and what ends an entry, most often.
const MORE_BYTES: usize = 128;

/// Builds an entry where it is to lie: what is known last stands in the room that was left in front,
/// and behind the operations.
#[derive(Debug, Clone, Default)]
pub struct EntryBuilder {
    bytes: Vec<u8>,
    count: usize,
    pub session: Option<SessionStamp>,
    /// Instead of a session's own statements: what sessions did on another shard.
    pub histories: Vec<History>,
}

impl EntryBuilder {
    pub fn new() -> EntryBuilder {
        EntryBuilder::default()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.session.is_none()
    }

    pub fn operations(&self) -> usize {
        self.count
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn out(&mut self) -> &mut Vec<u8> {
        if self.bytes.is_empty() {
            self.bytes.resize(HEADER_BYTES, 0);
        }
        &mut self.bytes
    }

    pub fn insert(&mut self, collection: CollectionId, record: &RecordId, document: &RawDocument) {
        self.start(tag::INSERT, collection, record, document);
        self.bytes.extend_from_slice(document.as_bytes());
    }

    pub fn update(
        &mut self,
        collection: CollectionId,
        record: &RecordId,
        before: &RawDocument,
        after: &RawDocument,
        style: &Style<'_>,
    ) {
        let tag = match style {
            Style::Modifiers { .. } => tag::UPDATE,
            Style::Replacement => tag::REPLACE,
            Style::Pipeline => tag::UPDATE_BY_PIPELINE,
        };
        self.start(tag, collection, record, after);
        let (before, after) = (before.as_bytes(), after.as_bytes());
        let prefix = common_prefix(before, after);
        let suffix = common_suffix(&before[prefix..], &after[prefix..]);
        let middle = &before[prefix..before.len() - suffix];
        let out = &mut self.bytes;
        out.extend_from_slice(after);
        put_varint(out, prefix as u64);
        put_varint(out, suffix as u64);
        put_bytes(out, middle);
        if let Style::Modifiers { wholes } = style {
            put_varint(out, wholes.len() as u64);
            for path in wholes {
                put_bytes(out, path.as_bytes());
            }
        }
    }

    pub fn delete(&mut self, collection: CollectionId, record: &RecordId, before: &RawDocument) {
        self.start(tag::DELETE, collection, record, before);
        self.bytes.extend_from_slice(before.as_bytes());
    }

    pub fn noop(&mut self, document: &RawDocument) {
        self.document(tag::NOOP, document);
    }

    pub fn set_config(&mut self, document: &RawDocument) {
        self.document(tag::SET_CONFIG, document);
    }

    fn document(&mut self, tag: u8, document: &RawDocument) {
        let out = self.out();
        out.push(tag);
        out.extend_from_slice(document.as_bytes());
        self.count += 1;
    }

    /// `document` is going to follow.
    fn start(
        &mut self,
        tag: u8,
        collection: CollectionId,
        record: &RecordId,
        document: &RawDocument,
    ) {
        let out = self.out();
        // Also for what ends the entry: one that holds a single large document is not moved.
        out.reserve(document.as_bytes().len() + MORE_BYTES);
        out.push(tag);
        put_varint(out, collection.into());
        match record.as_ref() {
            RecordIdRef::Number(number) => put_varint(out, number),
            RecordIdRef::Bytes(bytes) => {
                put_varint(out, NO_NUMBER);
                put_bytes(out, bytes);
            }
        }
        self.count += 1;
    }

    pub fn drop_database(&mut self, name: &str) {
        let out = self.out();
        out.push(tag::DROP_DATABASE);
        put_bytes(out, name.as_bytes());
        self.count += 1;
    }

    /// `about` is for those who read the log; it changes nothing.
    pub fn catalog(&mut self, change: &CatalogChange, about: &RawDocument) {
        let out = self.out();
        let tag = match change {
            CatalogChange::CreateCollection { .. } => tag::CREATE_COLLECTION,
            CatalogChange::DropCollection { .. } => tag::DROP_COLLECTION,
            CatalogChange::RenameCollection { .. } => tag::RENAME_COLLECTION,
            CatalogChange::SetOptions { .. } => tag::SET_OPTIONS,
            CatalogChange::CreateIndex { .. } => tag::CREATE_INDEX,
            CatalogChange::StartIndexBuild { .. } => tag::START_INDEX_BUILD,
            CatalogChange::CommitIndexBuild { .. } => tag::COMMIT_INDEX_BUILD,
            CatalogChange::AbortIndexBuild { .. } => tag::ABORT_INDEX_BUILD,
            // Each member's own: it is in no entry.
            CatalogChange::FinishIndexBuild { .. } => return,
            CatalogChange::DropIndex { .. } => tag::DROP_INDEX,
            CatalogChange::SetIndexSpec { .. } => tag::SET_INDEX_SPEC,
        };
        out.push(tag);
        put_varint(out, change.collection().into());
        out.extend_from_slice(about.as_bytes());
        match change {
            CatalogChange::CreateCollection {
                namespace,
                uuid,
                options,
                indexes,
                ..
            } => {
                put_bytes(out, namespace.as_str().as_bytes());
                out.extend_from_slice(uuid);
                out.extend_from_slice(options.as_bytes());
                put_varint(out, indexes.len() as u64);
                for index in indexes {
                    put_index(out, index);
                }
            }
            CatalogChange::DropCollection { .. } => {}
            CatalogChange::RenameCollection { to, .. } => put_bytes(out, to.as_str().as_bytes()),
            CatalogChange::SetOptions { options, .. } => out.extend_from_slice(options.as_bytes()),
            CatalogChange::CreateIndex { index, .. }
            | CatalogChange::SetIndexSpec { index, .. } => put_index(out, index),
            CatalogChange::DropIndex { index, .. } => put_varint(out, (*index).into()),
            CatalogChange::StartIndexBuild { build, .. } => {
                out.extend_from_slice(&build.id);
                put_varint(out, build.duplicates.into());
                out.extend_from_slice(build.options.as_bytes());
                put_varint(out, build.indexes.len() as u64);
                for index in &build.indexes {
                    put_index(out, index);
                }
            }
            CatalogChange::CommitIndexBuild { build, .. }
            | CatalogChange::AbortIndexBuild { build, .. }
            | CatalogChange::FinishIndexBuild { build, .. } => out.extend_from_slice(build),
        }
        self.count += 1;
    }

    /// The entry as it is proposed, to be sealed.
    pub fn encode(mut self, wall_ms: i64) -> Vec<u8> {
        let count = u32::try_from(self.count).unwrap_or(u32::MAX);
        let mut header = [0; HEADER_BYTES];
        header[0] = FORMAT;
        header[9..13].copy_from_slice(&count.to_le_bytes());
        header[13..].copy_from_slice(&wall_ms.to_le_bytes());
        let out = self.out();
        out[..HEADER_BYTES].copy_from_slice(&header);
        let start = out.len();
        let out = &mut self.bytes;
        match &self.session {
            None if !self.histories.is_empty() => {
                out.push(2);
                put_varint(out, self.histories.len() as u64);
                for history in &self.histories {
                    history.encode_into(out);
                }
            }
            None => out.push(0),
            Some(stamp) => {
                out.push(1);
                put_session(out, &stamp.session);
                out.extend_from_slice(&stamp.txn_number.to_le_bytes());
                put_varint(out, stamp.statements.len() as u64);
                for statement in &stamp.statements {
                    statement.encode(out);
                }
            }
        }
        // An entry has less than 4 GiB.
        let length = (out.len() - start) as u32;
        out.extend_from_slice(&length.to_le_bytes());
        self.bytes
    }
}

fn put_index(out: &mut Vec<u8>, index: &IndexDefinition) {
    put_varint(out, index.id.into());
    out.extend_from_slice(index.spec.as_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 16;
    let steps = a
        .chunks_exact(STEP)
        .zip(b.chunks_exact(STEP))
        .take_while(|(a, b)| a == b)
        .count();
    let start = steps * STEP;
    start
        + a[start..]
            .iter()
            .zip(&b[start..])
            .take_while(|(a, b)| a == b)
            .count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 16;
    let steps = a
        .rchunks_exact(STEP)
        .zip(b.rchunks_exact(STEP))
        .take_while(|(a, b)| a == b)
        .count();
    let (a, b) = (&a[..a.len() - steps * STEP], &b[..b.len() - steps * STEP]);
    let rest = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    steps * STEP + rest
}
