//! Histories on the move: what a session's statements have done, handed from shard to shard.
//!
//! A retry is sent to whoever owns the document by then, and finds the first try's outcome only if
//! the session's record has moved along with the document. A donor hands over all sessions that
//! have written since a given time, whatever they wrote to; the taker's log has them before the
//! range changes hands.
//!
//! That more is handed over than belongs to the range does no harm, for two reasons. Only
//! statements that changed something are: one that found nothing where it ran may have to run where
//! its document is. And a numbered statement changes one document, so if it has done so on one
//! shard, it has nothing to do on any other. A session that has gone on to a later number at the
//! taker is left alone, since it is done with the earlier one.

use std::collections::HashSet;

use banyan_document::validate::validate_with_depth;
use banyan_storage::{Snapshot, StorageError};
use banyan_wire::message::COMMAND_DEPTH_MAX;
use banyan_wire::{CommandError, ErrorCode};

use super::{
    LastWrite, META_PREFIX, SessionId, SessionRecord, Statement, StatementOutcome, last_write_bits,
    push, session_of,
};
use crate::codec::{EntryError, Reader, put_session, put_varint};

/// More than a session comes to under one number, of commands with a hundred thousand at most.
const STATEMENTS_MAX: u64 = 10_000_000;

/// What one session has changed under its latest number.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    pub session: SessionId,
    pub txn_number: i64,
    /// When it last wrote, where it did.
    pub wall_ms: i64,
    pub statements: Vec<Statement>,
}

/// Some of the histories that were asked for.
#[derive(Debug, Default)]
pub struct Page {
    /// Each as [`History::encode`] writes it.
    pub histories: Vec<Vec<u8>>,
    /// The time of the state that they are from, as [`crate::clock::to_bits`].
    pub as_of: u64,
    /// Where to go on, if there are more.
    pub after: Option<SessionId>,
}

impl History {
    fn of(session: SessionId, record: SessionRecord) -> Option<History> {
        let mut statements = record.statements;
        statements.retain(|statement| statement.outcome.had_effect());
        (!statements.is_empty()).then_some(History {
            session,
            txn_number: record.txn_number,
            wall_ms: record.last_write.wall_ms,
            statements,
        })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40 + 16 * self.statements.len());
        self.encode_into(&mut out);
        out
    }

    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        put_session(out, &self.session);
        out.extend_from_slice(&self.txn_number.to_le_bytes());
        out.extend_from_slice(&self.wall_ms.to_le_bytes());
        put_varint(out, self.statements.len() as u64);
        for statement in &self.statements {
            statement.encode(out);
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<History, EntryError> {
        let session = reader.session()?;
        let txn_number = i64::from_le_bytes(reader.array()?);
        let wall_ms = i64::from_le_bytes(reader.array()?);
        let count = reader.varint()?;
        let statements = (0..count)
            .map(|_| Statement::decode(reader))
            .collect::<Result<_, _>>()?;
        Ok(History {
            session,
            txn_number,
            wall_ms,
            statements,
        })
    }

    /// Reads what another server has sent.
    pub fn parse(bytes: &[u8]) -> Result<History, CommandError> {
        let bad = |text: String| {
            CommandError::new(
                ErrorCode::FailedToParse,
                format!("a session's history: {text}"),
            )
        };
        let mut reader = Reader { bytes };
        let history = History::decode(&mut reader).map_err(|error| bad(error.to_string()))?;
        if !reader.bytes.is_empty() {
            return Err(bad(format!("{} bytes too many", reader.bytes.len())));
        }
        let counts = history.statements.iter().map(|s| u64::from(s.count));
        if counts.sum::<u64>() > STATEMENTS_MAX {
            return Err(bad("too many statements".to_owned()));
        }
        for statement in &history.statements {
            let document = match &statement.outcome {
                StatementOutcome::Update { upserted, .. } => upserted.as_ref(),
                StatementOutcome::FindAndModify { reply } => Some(reply),
                StatementOutcome::Insert | StatementOutcome::Delete { .. } => None,
            };
            if let Some(document) = document {
                validate_with_depth(document.as_bytes(), COMMAND_DEPTH_MAX)
                    .map_err(|error| bad(error.to_string()))?;
            }
        }
        Ok(history)
    }

    /// Whether a record has nothing to learn from it.
    pub(crate) fn is_known_to(&self, record: &SessionRecord) -> bool {
        if record.txn_number != self.txn_number {
            return record.txn_number > self.txn_number;
        }
        let known = changed_by(&record.statements);
        changed_by(&self.statements).is_subset(&known)
    }
}

/// The numbers of the statements that changed something.
fn changed_by(statements: &[Statement]) -> HashSet<i32> {
    let changed = statements.iter().filter(|s| s.outcome.had_effect());
    changed.flat_map(Statement::ids).collect()
}

impl SessionRecord {
    /// Takes in what the session did on another shard.
    pub fn adopt(known: Option<SessionRecord>, history: &History, now: LastWrite) -> SessionRecord {
        let mut record = match known {
            Some(record) if record.txn_number > history.txn_number => return record,
            Some(record) if record.txn_number == history.txn_number => record,
            _ => SessionRecord {
                txn_number: history.txn_number,
                last_write: LastWrite::default(),
                statements: Vec::new(),
            },
        };
        record.last_write = LastWrite {
            wall_ms: history.wall_ms.max(record.last_write.wall_ms),
            ..now
        };
        let mut changed = changed_by(&record.statements);
        for statement in &history.statements {
            for id in statement.ids().filter(|id| changed.insert(*id)) {
                let statement = Statement::new(id, statement.outcome.clone());
                push(&mut record.statements, statement);
            }
        }
        record
    }
}

/// Histories of sessions that have written at `since` or later, in the order of the sessions'
/// ids after `after`, up to about `bytes_max`.
pub fn since(
    snapshot: &Snapshot,
    as_of: u64,
    since: u64,
    after: Option<SessionId>,
    bytes_max: usize,
) -> Result<Page, StorageError> {
    let mut page = Page {
        as_of,
        ..Page::default()
    };
    let mut bytes = 0;
    let mut last = None;
    // Ids are random: a part of them is found without passing over all that come before it.
    for part in after.map_or(0, |after| after.id[0])..=u8::MAX {
        for found in snapshot.scan_meta(&[META_PREFIX, part]) {
            let (key, encoded) = found?;
            let Some(session) = session_of(&key).filter(|id| Some(*id) > after) else {
                continue;
            };
            if bytes >= bytes_max {
                page.after = last;
                return Ok(page);
            }
            last = Some(session);
            // Most have not written since.
            if last_write_bits(&encoded).is_some_and(|written| written < since) {
                continue;
            }
            let record = SessionRecord::read(&encoded)?;
            if let Some(history) = History::of(session, record) {
                let encoded = history.encode();
                bytes += encoded.len();
                page.histories.push(encoded);
            }
        }
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    use crate::entry::{Entry, EntryBuilder};

    fn updated(modified: u64) -> StatementOutcome {
        StatementOutcome::Update {
            matched: 1,
            modified,
            upserted: None,
        }
    }

    fn record(txn_number: i64, statements: Vec<Statement>) -> SessionRecord {
        SessionRecord {
            txn_number,
            last_write: LastWrite {
                wall_ms: 50,
                time_bits: 5,
                raft_term: 1,
            },
            statements,
        }
    }

    fn inserts(first: i32, count: u32) -> Statement {
        Statement {
            first,
            count,
            outcome: StatementOutcome::Insert,
        }
    }

    const NOW: LastWrite = LastWrite {
        wall_ms: 100,
        time_bits: 9,
        raft_term: 2,
    };

    #[test]
    fn what_changed_nothing_stays_where_it_ran() {
        let missed = StatementOutcome::Delete { deleted: 0 };
        let found = rawdoc! { "lastErrorObject": { "n": 0 }, "value": null };
        let nothing = vec![
            Statement::new(0, missed.clone()),
            Statement::new(1, updated(0)),
            Statement::new(2, StatementOutcome::FindAndModify { reply: found }),
        ];
        assert_eq!(
            History::of(SessionId::shared([1; 16]), record(3, nothing.clone())),
            None
        );
        let mut some = nothing;
        some.push(Statement::new(3, updated(1)));
        let history = History::of(SessionId::shared([1; 16]), record(3, some)).unwrap();
        assert_eq!(history.statements, [Statement::new(3, updated(1))]);
        assert_eq!(History::parse(&history.encode()).unwrap(), history);
        let bytes = history.encode();
        for length in 0..bytes.len() {
            assert!(History::parse(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_later_number_wins_and_an_equal_one_is_completed() {
        let missed = Statement::new(7, StatementOutcome::Delete { deleted: 0 });
        let own = record(4, vec![inserts(0, 3), missed]);
        let history = |txn_number| History {
            session: SessionId::shared([1; 16]),
            txn_number,
            wall_ms: 70,
            statements: vec![
                inserts(2, 3),
                Statement::new(7, StatementOutcome::Delete { deleted: 1 }),
            ],
        };
        assert!(history(3).is_known_to(&own));
        let kept = SessionRecord::adopt(Some(own.clone()), &history(3), NOW);
        assert_eq!(kept, own);

        assert!(!history(4).is_known_to(&own));
        let both = SessionRecord::adopt(Some(own.clone()), &history(4), NOW);
        assert_eq!(both.last_write, LastWrite { wall_ms: 70, ..NOW });
        let inserted: Vec<i32> = (0..9)
            .filter(|id| both.find(*id) == Some(&StatementOutcome::Insert))
            .collect();
        assert_eq!(inserted, [0, 1, 2, 3, 4]);
        assert_eq!(both.find(7), Some(&StatementOutcome::Delete { deleted: 1 }));
        assert!(history(4).is_known_to(&both));
        assert_eq!(
            SessionRecord::adopt(Some(both.clone()), &history(4), NOW),
            both
        );

        let newer = SessionRecord::adopt(Some(own), &history(5), NOW);
        assert_eq!((newer.txn_number, newer.find(0)), (5, None));
        assert_eq!(newer.find(4), Some(&StatementOutcome::Insert));
    }

    #[test]
    fn an_entry_carries_many() {
        let histories: Vec<History> = (0..3)
            .map(|n| History {
                session: SessionId {
                    id: [n; 16],
                    user: (n > 0).then_some([n; 32]),
                },
                txn_number: n.into(),
                wall_ms: 1,
                statements: vec![Statement::new(0, updated(1))],
            })
            .collect();
        let mut builder = EntryBuilder::new();
        builder.noop(&rawdoc! { "msg": "x" });
        builder.histories = histories.clone();
        let bytes = builder.encode(5);
        let entry = Entry::decode(&bytes).unwrap();
        assert_eq!(entry.histories, histories);
        assert_eq!(
            (entry.session.as_ref(), entry.operations().count()),
            (None, 1)
        );
        assert!(Entry::decode(&bytes[..60]).is_err());
    }
}
