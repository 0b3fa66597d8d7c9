//! Retryable statements: what each session's latest transaction number has done so far.
//!
//! The record of a session lies in meta and is written in the batch of the statements themselves,
//! so a statement is recorded exactly if it has taken effect, on every member. A retry finds the
//! recorded outcome, also after a failover. A session works on one transaction number at a time;
//! a higher one forgets the lower.
//!
//! [`histories`] move what sessions have done from shard
//! to shard. [`attempts`] tell the tries of a write apart that may be carried out on any of several.

pub mod attempts;
pub mod histories;

use std::collections::HashMap;

use banyan_storage::{Snapshot, StorageError, Store};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocument, RawDocumentBuf, Timestamp};
use parking_lot::Mutex;

use crate::clock;
use crate::codec::{EntryError, Reader, put_varint};
pub use banyan_wire::SessionId;

/// Prefix of the sessions' keys in meta.
pub const META_PREFIX: u8 = b's';

pub fn meta_key(session: &SessionId) -> Vec<u8> {
    [&[META_PREFIX][..], &session.bytes()].concat()
}

/// Whose key it is.
pub fn session_of(key: &[u8]) -> Option<SessionId> {
    match key.split_first()? {
        (&META_PREFIX, session) => SessionId::from_bytes(session),
        _ => None,
    }
}

/// What consecutive statements have come to. Inserts of one batch share one of these.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    pub first: i32,
    pub count: u32,
    pub outcome: StatementOutcome,
}

#[derive(Debug, Clone, PartialEq)]
pub enum StatementOutcome {
    Insert,
    /// `upserted` is `{_id: …}`.
    Update {
        matched: u64,
        modified: u64,
        upserted: Option<RawDocumentBuf>,
    },
    Delete {
        deleted: u64,
    },
    /// The fields of a `findAndModify` reply.
    FindAndModify {
        reply: RawDocumentBuf,
    },
}

impl StatementOutcome {
    /// Whether a document has changed. One that has not may change when the statement runs again,
    /// or when it runs where the document is.
    pub fn had_effect(&self) -> bool {
        match self {
            StatementOutcome::Insert => true,
            StatementOutcome::Update {
                modified, upserted, ..
            } => *modified > 0 || upserted.is_some(),
            StatementOutcome::Delete { deleted } => *deleted > 0,
            StatementOutcome::FindAndModify { reply } => reply
                .get_document("lastErrorObject")
                .is_ok_and(|told| told.get_i32("n").is_ok_and(|n| n > 0)),
        }
    }
}

mod tag {
    pub const INSERT: u8 = 1;
    pub const UPDATE: u8 = 2;
    pub const UPSERT: u8 = 3;
    pub const DELETE: u8 = 4;
    pub const FIND_AND_MODIFY: u8 = 5;
}

impl Statement {
    pub fn new(id: i32, outcome: StatementOutcome) -> Statement {
        Statement {
            first: id,
            count: 1,
            outcome,
        }
    }

    /// The statements' numbers.
    pub fn ids(&self) -> impl Iterator<Item = i32> + use<> {
        let (first, count) = (i64::from(self.first), i64::from(self.count));
        (first..first + count).map_while(|id| i32::try_from(id).ok())
    }

    fn covers(&self, id: i32) -> bool {
        (i64::from(id) - i64::from(self.first)) >= 0
            && i64::from(id) - i64::from(self.first) < i64::from(self.count)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.to_le_bytes());
        put_varint(out, self.count.into());
        match &self.outcome {
            StatementOutcome::Insert => out.push(tag::INSERT),
            StatementOutcome::Update {
                matched,
                modified,
                upserted,
            } => {
                out.push(if upserted.is_some() {
                    tag::UPSERT
                } else {
                    tag::UPDATE
                });
                put_varint(out, *matched);
                put_varint(out, *modified);
                if let Some(id) = upserted {
                    out.extend_from_slice(id.as_bytes());
                }
            }
            StatementOutcome::Delete { deleted } => {
                out.push(tag::DELETE);
                put_varint(out, *deleted);
            }
            StatementOutcome::FindAndModify { reply } => {
                out.push(tag::FIND_AND_MODIFY);
                out.extend_from_slice(reply.as_bytes());
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Statement, EntryError> {
        let first = i32::from_le_bytes(reader.array()?);
        let count = u32::try_from(reader.varint()?).unwrap_or(u32::MAX);
        let tag = reader.u8()?;
        let outcome = match tag {
            tag::INSERT => StatementOutcome::Insert,
            tag::UPDATE | tag::UPSERT => {
                let matched = reader.varint()?;
                let modified = reader.varint()?;
                let upserted = (tag == tag::UPSERT)
                    .then(|| reader.document().map(RawDocument::to_owned))
                    .transpose()?;
                StatementOutcome::Update {
                    matched,
                    modified,
                    upserted,
                }
            }
            tag::DELETE => StatementOutcome::Delete {
                deleted: reader.varint()?,
            },
            tag::FIND_AND_MODIFY => StatementOutcome::FindAndModify {
                reply: reader.document()?.to_owned(),
            },
            other => return Err(EntryError::unknown("statement", other)),
        };
        Ok(Statement {
            first,
            count,
            outcome,
        })
    }
}

/// Statements of one session that the entry settles.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionStamp {
    pub session: SessionId,
    pub txn_number: i64,
    pub statements: Vec<Statement>,
}

/// What is recorded of one session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionRecord {
    pub txn_number: i64,
    pub last_write: LastWrite,
    pub statements: Vec<Statement>,
}

/// The entry that a session wrote last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LastWrite {
    pub wall_ms: i64,
    /// As [`clock::to_bits`].
    pub time_bits: u64,
    pub raft_term: u64,
}

impl LastWrite {
    pub fn time(&self) -> Timestamp {
        clock::from_bits(self.time_bits)
    }

    pub fn term(&self) -> i64 {
        i64::try_from(self.raft_term).unwrap_or(i64::MAX)
    }
}

impl SessionRecord {
    /// Takes in what an entry has settled.
    pub fn merge(
        known: Option<SessionRecord>,
        stamp: &SessionStamp,
        last_write: LastWrite,
    ) -> SessionRecord {
        let mut record = match known {
            Some(record) if record.txn_number == stamp.txn_number => record,
            _ => SessionRecord {
                txn_number: stamp.txn_number,
                last_write,
                statements: Vec::new(),
            },
        };
        record.last_write = last_write;
        for statement in &stamp.statements {
            push(&mut record.statements, statement.clone());
        }
        record
    }

    /// What a statement came to. One that did nothing at first and was run again is told as what
    /// it did then.
    pub fn find(&self, statement: i32) -> Option<&StatementOutcome> {
        let mut found = None;
        for known in self.statements.iter().filter(|s| s.covers(statement)) {
            if known.outcome.had_effect() {
                return Some(&known.outcome);
            }
            found = Some(&known.outcome);
        }
        found
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40 + 16 * self.statements.len());
        out.extend_from_slice(&self.txn_number.to_le_bytes());
        out.extend_from_slice(&self.last_write.wall_ms.to_le_bytes());
        out.extend_from_slice(&self.last_write.time_bits.to_le_bytes());
        out.extend_from_slice(&self.last_write.raft_term.to_le_bytes());
        for statement in &self.statements {
            statement.encode(&mut out);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<SessionRecord, EntryError> {
        let mut reader = Reader { bytes };
        let txn_number = i64::from_le_bytes(reader.array()?);
        let last_write = LastWrite {
            wall_ms: i64::from_le_bytes(reader.array()?),
            time_bits: u64::from_le_bytes(reader.array()?),
            raft_term: u64::from_le_bytes(reader.array()?),
        };
        let mut statements = Vec::new();
        while !reader.bytes.is_empty() {
            statements.push(Statement::decode(&mut reader)?);
        }
        Ok(SessionRecord {
            txn_number,
            last_write,
            statements,
        })
    }

    pub fn load(
        snapshot: &Snapshot,
        session: &SessionId,
    ) -> Result<Option<SessionRecord>, StorageError> {
        let Some(bytes) = snapshot.meta(&meta_key(session))? else {
            return Ok(None);
        };
        SessionRecord::read(&bytes).map(Some)
    }

    /// Reads what lies in meta.
    pub fn read(bytes: &[u8]) -> Result<SessionRecord, StorageError> {
        SessionRecord::decode(bytes).map_err(|error| StorageError::Damaged {
            place: "the record of a session".to_owned(),
            reason: error.to_string(),
        })
    }
}

/// Sessions whose latest transaction number is remembered; beyond it all are looked up again.
const LATEST_MAX: usize = 1 << 16;

/// The latest transaction numbers of sessions that wrote lately. Most writes begin a new one, and
/// then nothing that is recorded matters: no record has to be read.
#[derive(Debug, Default)]
pub struct LatestNumbers {
    known: Mutex<HashMap<SessionId, Latest>>,
}

#[derive(Debug, Default)]
struct Latest {
    /// That of the session's record, or -1 if there is no record; `None` if nobody has looked.
    recorded: Option<i64>,
    /// The highest that a write has begun with. One that changed nothing is in no record.
    begun: Option<i64>,
}

impl LatestNumbers {
    /// A write begins. From here on an earlier number comes too late.
    pub fn begin(&self, write: Retryable) -> Result<(), CommandError> {
        self.with(&write.session, |latest| match latest.begun {
            Some(newer) if newer > write.txn_number => Err(write.too_old(newer)),
            _ => {
                latest.begun = Some(write.txn_number);
                Ok(())
            }
        })
    }

    /// What is recorded of the session, unless it is about an earlier number than this.
    pub fn load(
        &self,
        store: &Store,
        session: &SessionId,
        txn_number: i64,
    ) -> Result<Option<SessionRecord>, StorageError> {
        let recorded = self.known.lock().get(session).and_then(|l| l.recorded);
        if recorded.is_some_and(|recorded| recorded < txn_number) {
            return Ok(None);
        }
        let record = SessionRecord::load(&store.snapshot(), session)?;
        let number = record.as_ref().map_or(-1, |record| record.txn_number);
        self.note_recorded(session, number);
        Ok(record)
    }

    /// To be told once the records are in the store.
    pub fn note<'a>(&self, written: impl Iterator<Item = (&'a SessionId, &'a SessionRecord)>) {
        for (session, record) in written {
            self.note_recorded(session, record.txn_number);
        }
    }

    pub fn forget(&self) {
        self.known.lock().clear();
    }

    /// A later record may have been noted since this one was read.
    fn note_recorded(&self, session: &SessionId, number: i64) {
        self.with(session, |latest| {
            latest.recorded = latest.recorded.max(Some(number));
        });
    }

    fn with<R>(&self, session: &SessionId, change: impl FnOnce(&mut Latest) -> R) -> R {
        let mut known = self.known.lock();
        if known.len() >= LATEST_MAX && !known.contains_key(session) {
            known.clear();
        }
        change(known.entry(*session).or_default())
    }
}

/// The time of the entry that an encoded record was last written by.
pub fn last_write_bits(record: &[u8]) -> Option<u64> {
    let (bytes, _) = record.get(16..)?.split_first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Adds a statement, in one piece with the last where both are inserts in a row.
pub fn push(statements: &mut Vec<Statement>, statement: Statement) {
    if let Some(last) = statements.last_mut()
        && last.outcome == StatementOutcome::Insert
        && statement.outcome == StatementOutcome::Insert
        && i64::from(last.first) + i64::from(last.count) == i64::from(statement.first)
        && last.count.checked_add(statement.count).is_some()
    {
        last.count += statement.count;
        return;
    }
    statements.push(statement);
}

/// The session and transaction number of a retryable write, as the command names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retryable {
    pub session: SessionId,
    pub txn_number: i64,
}

impl Retryable {
    pub fn parse(
        session: Option<SessionId>,
        txn_number: Option<i64>,
    ) -> Result<Option<Retryable>, CommandError> {
        let Some(txn_number) = txn_number else {
            return Ok(None);
        };
        let invalid = |message: &str| CommandError::new(ErrorCode::InvalidOptions, message);
        let Some(session) = session else {
            return Err(invalid(
                "Transaction number requires a session ID to also be specified",
            ));
        };
        if txn_number < 0 {
            return Err(invalid("Transaction number cannot be negative"));
        }
        Ok(Some(Retryable {
            session,
            txn_number,
        }))
    }

    /// What is known of this transaction number: nothing yet, or the statements so far.
    pub fn check(
        &self,
        known: Option<SessionRecord>,
    ) -> Result<Option<SessionRecord>, CommandError> {
        match known {
            Some(record) if record.txn_number > self.txn_number => {
                Err(self.too_old(record.txn_number))
            }
            Some(record) if record.txn_number == self.txn_number => Ok(Some(record)),
            _ => Ok(None),
        }
    }

    fn too_old(&self, newer: i64) -> CommandError {
        let message = format!(
            "Retryable write with txnNumber {} is prohibited on session {} because a newer \
             retryable write with txnNumber {newer} has already started on this session.",
            self.txn_number, self.session
        );
        CommandError::new(ErrorCode::TransactionTooOld, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(txn_number: i64, statements: Vec<Statement>) -> SessionStamp {
        SessionStamp {
            session: SessionId::shared([1; 16]),
            txn_number,
            statements,
        }
    }

    fn at(wall_ms: i64) -> LastWrite {
        LastWrite {
            wall_ms,
            time_bits: 7,
            raft_term: 2,
        }
    }

    #[test]
    fn inserts_in_a_row_share_one_line() {
        let inserts = |from: i32, to: i32| {
            (from..to)
                .map(|id| Statement::new(id, StatementOutcome::Insert))
                .collect()
        };
        let record = SessionRecord::merge(None, &stamp(1, inserts(0, 500)), at(10));
        let record = SessionRecord::merge(Some(record), &stamp(1, inserts(500, 900)), at(20));
        assert_eq!(record.statements.len(), 1);
        assert_eq!(record.find(0), Some(&StatementOutcome::Insert));
        assert_eq!(record.find(899), Some(&StatementOutcome::Insert));
        assert_eq!(record.find(900), None);
        assert_eq!(record.find(-1), None);
        let read = SessionRecord::decode(&record.encode()).unwrap();
        assert_eq!(read, record);
        assert_eq!(last_write_bits(&record.encode()), Some(7));
    }

    #[test]
    fn a_new_number_forgets_the_old_one() {
        let deleted = StatementOutcome::Delete { deleted: 1 };
        let first = stamp(1, vec![Statement::new(0, deleted.clone())]);
        let record = SessionRecord::merge(None, &first, at(10));
        let retry = |txn_number| Retryable {
            session: SessionId::shared([1; 16]),
            txn_number,
        };
        assert_eq!(
            retry(1)
                .check(Some(record.clone()))
                .unwrap()
                .unwrap()
                .find(0),
            Some(&deleted)
        );
        assert_eq!(retry(2).check(Some(record.clone())).unwrap(), None);
        let error = retry(0).check(Some(record.clone())).unwrap_err();
        assert_eq!(error.code, ErrorCode::TransactionTooOld);
        let record = SessionRecord::merge(Some(record), &stamp(2, Vec::new()), at(20));
        assert_eq!((record.txn_number, record.find(0)), (2, None));
    }

    #[test]
    fn a_transaction_number_needs_a_session() {
        assert_eq!(Retryable::parse(None, None).unwrap(), None);
        assert!(Retryable::parse(None, Some(1)).is_err());
        let session = Some(SessionId::shared([1; 16]));
        assert!(Retryable::parse(session, Some(-1)).is_err());
        assert_eq!(Retryable::parse(session, None).unwrap(), None);
        assert!(Retryable::parse(session, Some(0)).unwrap().is_some());
    }
}
