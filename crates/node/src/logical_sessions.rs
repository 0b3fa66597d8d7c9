//! Logical sessions: which ones are in use, and when each was last heard of.
//!
//! A session exists by being named in a command. What belongs to one are its cursors and running
//! commands, which end with it, and the outcome of its last retryable write, which lies with the
//! data (`crate::write::sessions`). One that nobody has named for the time-out ends here; their
//! number is bounded.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use banyan_document::kind;
use banyan_wire::{CommandError, ErrorCode};
use bson::spec::BinarySubtype;
use bson::{Binary, DateTime, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;

use crate::clock;
use crate::node::Node;
use crate::params;
use banyan_execution::Cause;

/// The UUID in `lsid`. Who the user is is no part of it while nobody logs in.
pub type SessionId = [u8; 16];

/// SHA-256 of no name at all: the `uid` of every session while nobody logs in.
const NOBODY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// The same, as messages show it.
pub const NOBODY_BASE64: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

pub fn nobody() -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: NOBODY.to_vec(),
    }
}

/// A session as messages name it.
pub fn shown(session: &SessionId) -> String {
    let id = uuid::Uuid::from_bytes(*session);
    format!("{id} - {NOBODY_BASE64} -  - ")
}

/// `{id, uid}`, as MongoDB keeps sessions by.
pub fn document(session: &SessionId) -> RawDocumentBuf {
    rawdoc! { "id": params::uuid(session), "uid": nobody() }
}

/// The session that `lsid` names.
pub fn parse(lsid: &RawDocument) -> Result<SessionId, CommandError> {
    const ID: &str = "OperationSessionInfo.lsid.id";
    let mismatch = |text| CommandError::new(ErrorCode::TypeMismatch, text);
    let mut session = None;
    for (name, value) in lsid.iter().flatten() {
        match (name.as_str(), value) {
            ("id", RawBsonRef::Binary(RawBinaryRef { subtype, bytes })) => {
                if subtype != BinarySubtype::Uuid {
                    return Err(mismatch(format!(
                        "BSON field '{ID}' is the wrong binData type '{}', expected type 'UUID'",
                        subtype_name(subtype)
                    )));
                }
                session = Some(bytes.try_into().map_err(|_| {
                    CommandError::new(
                        ErrorCode::InvalidUUID,
                        "uuid must be a 16-byte binary field with UUID (4) subtype",
                    )
                })?);
            }
            ("id", value) => {
                return Err(mismatch(format!(
                    "BSON field '{ID}' is the wrong type '{}', expected type 'binData'",
                    kind::name(&value)
                )));
            }
            // Parts of it that a router or a driver may add.
            ("uid" | "txnNumber" | "txnUUID", _) => {}
            (name, _) => {
                return Err(params::unknown_field("OperationSessionInfo.lsid", name));
            }
        }
    }
    session.ok_or_else(|| params::missing_field("OperationSessionInfo.lsid", "id"))
}

fn subtype_name(subtype: BinarySubtype) -> &'static str {
    match subtype {
        BinarySubtype::Generic => "general",
        BinarySubtype::Function => "function",
        BinarySubtype::UuidOld => "UUID",
        BinarySubtype::Md5 => "MD5",
        _ => "other",
    }
}

/// Sessions are spread over this many locks.
const SHARDS: usize = 16;

pub struct LogicalSessions {
    /// When each was last named, in milliseconds of the wall clock.
    shards: Box<[Mutex<HashMap<SessionId, i64>>]>,
    count: AtomicUsize,
}

impl Default for LogicalSessions {
    fn default() -> LogicalSessions {
        LogicalSessions {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
        }
    }
}

impl LogicalSessions {
    fn shard(&self, session: &SessionId) -> &Mutex<HashMap<SessionId, i64>> {
        &self.shards[usize::from(session[15]) % SHARDS]
    }

    /// Somebody uses it.
    pub fn touch(&self, session: SessionId, sessions_max: usize) -> Result<(), CommandError> {
        self.touch_at(session, sessions_max, clock::wall_ms())
    }

    fn touch_at(
        &self,
        session: SessionId,
        sessions_max: usize,
        now_ms: i64,
    ) -> Result<(), CommandError> {
        let mut shard = self.shard(&session).lock();
        if let Some(used) = shard.get_mut(&session) {
            *used = now_ms;
            return Ok(());
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= sessions_max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(CommandError::new(
                ErrorCode::TooManyLogicalSessions,
                format!(
                    "Unable to add session ID {} into the cache because the number of active \
                     sessions is too high",
                    uuid::Uuid::from_bytes(session)
                ),
            ));
        }
        shard.insert(session, now_ms);
        Ok(())
    }

    pub fn end(&self, session: &SessionId) -> bool {
        let ended = self.shard(session).lock().remove(session).is_some();
        if ended {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }

    /// Ends all that were last named before that time.
    pub fn expire(&self, before_ms: i64) -> Vec<SessionId> {
        let mut expired = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|session, used| {
                let stays = *used >= before_ms;
                if !stays {
                    expired.push(*session);
                }
                stays
            });
        }
        self.count.fetch_sub(expired.len(), Ordering::Relaxed);
        expired
    }

    pub fn all(&self) -> Vec<(SessionId, DateTime)> {
        let mut all = Vec::with_capacity(self.count());
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(
                shard
                    .iter()
                    .map(|(session, used)| (*session, DateTime::from_millis(*used))),
            );
        }
        all
    }

    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Node {
    /// Ends what belongs to a session: its cursors and, if told so, what it runs now.
    pub fn end_session(&self, session: &SessionId, kill_running: bool) {
        self.cursors.kill_session(*session);
        self.sessions.end(session);
        if !kill_running {
            return;
        }
        for operation in self.operations.all() {
            let lsid = operation.body.get_document("lsid").ok();
            if lsid.and_then(|lsid| parse(lsid).ok()).as_ref() == Some(session) {
                operation.interrupt.raise(Cause::Killed);
            }
        }
    }

    /// Ends every session's cursors and commands but those of the connection that asks.
    pub fn kill_all_sessions(&self, asking_connection: u64) {
        for (session, _) in self.sessions.all() {
            self.cursors.kill_session(session);
        }
        for operation in self.operations.all() {
            let named = operation.body.get_document("lsid").is_ok();
            if named && operation.connection.id != asking_connection {
                operation.interrupt.raise(Cause::Killed);
            }
        }
    }

    /// Ends sessions that nobody has named for the time-out, and their cursors.
    pub fn expire_sessions(&self) -> usize {
        let minutes = self.parameters.value("localLogicalSessionTimeoutMinutes");
        let before = clock::wall_ms().saturating_sub(minutes.saturating_mul(60_000));
        let expired = self.sessions.expire(before);
        for session in &expired {
            self.cursors.kill_session(*session);
        }
        expired.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_end_when_nobody_names_them() {
        let sessions = LogicalSessions::default();
        sessions.touch_at([1; 16], 2, 10).unwrap();
        sessions.touch_at([2; 16], 2, 20).unwrap();
        let error = sessions.touch_at([3; 16], 2, 30).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooManyLogicalSessions);
        sessions.touch_at([1; 16], 2, 40).unwrap();
        assert_eq!(sessions.expire(30), [[2; 16]]);
        sessions.touch_at([3; 16], 2, 50).unwrap();
        assert!(sessions.end(&[1; 16]) && !sessions.end(&[1; 16]));
        assert_eq!(sessions.count(), 1);
        assert_eq!(sessions.all(), [([3; 16], DateTime::from_millis(50))]);
    }

    #[test]
    fn what_does_not_name_a_session_is_refused() {
        let uuid = |length: usize, subtype| Binary {
            subtype,
            bytes: vec![7; length],
        };
        let good = uuid(16, BinarySubtype::Uuid);
        let lsid = rawdoc! { "id": good.clone(), "uid": nobody() };
        assert_eq!(parse(&lsid).unwrap(), [7; 16]);
        let refused = [
            (rawdoc! {}, 40414),
            (rawdoc! { "id": 5 }, 14),
            (rawdoc! { "id": uuid(16, BinarySubtype::Generic) }, 14),
            (rawdoc! { "id": uuid(1, BinarySubtype::Uuid) }, 207),
            (rawdoc! { "id": good, "what": 1 }, 40415),
        ];
        for (lsid, code) in refused {
            assert_eq!(parse(&lsid).unwrap_err().code.code(), code, "{lsid:?}");
        }
    }
}
