//! `getLastError` and its siblings: the outcome of the connection's last write.
//!
//! The drivers of 2012 send a write that nobody answers and ask afterwards, on the same connection.
//! Each write command's reply leaves its outcome with the connection; these commands answer from
//! there. A write is on a majority by then, so only a `w` above 1, a mode, tags or the journal have
//! to be waited for.

use banyan_document::field;
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::codes::ErrorCode;
use crate::connection::{Connection, LastError, LastWrite};
use crate::error::CommandError;
use crate::request::Request;

/// A command about the connection's last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    LastError,
    PreviousError,
    Reset,
}

impl Question {
    pub fn of(name: &str) -> Option<Question> {
        match name {
            "getLastError" | "getlasterror" => Some(Question::LastError),
            "getPrevError" | "getpreverror" => Some(Question::PreviousError),
            "resetError" | "reseterror" => Some(Question::Reset),
            _ => None,
        }
    }
}

/// The name of the command that waits for a write concern and does nothing else.
const WAIT: &str = "_awaitWrites";

/// The request that waits for what `getLastError` asks for; `None` if nothing has to be waited for.
pub(crate) fn wait(request: Request) -> Option<Request> {
    let more_members = match request.get("w") {
        None => false,
        Some(RawBsonRef::Int32(n)) => n > 1,
        Some(RawBsonRef::Int64(n)) => n > 1,
        Some(RawBsonRef::Double(n)) => n > 1.0,
        Some(RawBsonRef::String(mode)) => mode != "majority",
        Some(_) => true,
    };
    let flag = |name| match request.get(name) {
        Some(RawBsonRef::Boolean(flag)) => flag,
        Some(RawBsonRef::Int32(n)) => n != 0,
        Some(RawBsonRef::Int64(n)) => n != 0,
        Some(RawBsonRef::Double(n)) => n != 0.0,
        _ => false,
    };
    if !more_members && !flag("j") && !flag("fsync") {
        return None;
    }
    let mut concern = RawDocumentBuf::new();
    for name in [cstr!("w"), cstr!("j"), cstr!("fsync"), cstr!("wtimeout")] {
        if let Some(value) = request.get(name.as_str()) {
            concern.append(name, value);
        }
    }
    let body = rawdoc! { "_awaitWrites": 1, "writeConcern": concern, "$db": "admin" };
    Some(Request {
        database: "admin".to_owned(),
        name: WAIT.to_owned(),
        body: body.into(),
        sequences: Vec::new(),
        ..request
    })
}

/// The reply to `getLastError` after a wait that `waited` was the answer to.
pub(crate) fn after_wait(
    write: &LastWrite,
    connection_id: u64,
    waited: &RawDocument,
) -> RawDocumentBuf {
    if let Some(error) = CommandError::from_reply(waited) {
        return error.to_reply();
    }
    let Ok(error) = waited.get_document("writeConcernError") else {
        return reply(write, connection_id);
    };
    let code = error.get_i32("code").unwrap_or_default();
    let code = ErrorCode::from_code(code);
    let message = error.get_str("errmsg").unwrap_or_default();
    if code != ErrorCode::WriteConcernFailed {
        return CommandError::new(code, message).to_reply();
    }
    let mut out = outcome_fields(write, connection_id);
    out.append(cstr!("wtimeout"), true);
    out.append(cstr!("err"), "timeout");
    out.append(cstr!("errmsg"), message);
    out.append(cstr!("code"), code.code());
    out.append(cstr!("codeName"), &*code.name());
    out.append(cstr!("ok"), 1.0);
    out
}

/// The reply to `getLastError` when there is nothing to wait for.
pub(crate) fn reply(write: &LastWrite, connection_id: u64) -> RawDocumentBuf {
    let mut out = outcome_fields(write, connection_id);
    append_error(&mut out, write.error.as_ref());
    out.append(cstr!("ok"), 1.0);
    out
}

fn outcome_fields(write: &LastWrite, connection_id: u64) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    if let Some(time) = write.time {
        out.append(cstr!("lastOp"), time);
    }
    let connection_id = i64::try_from(connection_id).unwrap_or(i64::MAX);
    out.append(cstr!("connectionId"), connection_id);
    if let Some(existing) = write.updated_existing {
        out.append(cstr!("updatedExisting"), existing);
    }
    if let Some(id) = &write.upserted {
        out.append(cstr!("upserted"), id.as_raw_bson_ref());
    }
    let n = i32::try_from(write.matched_or_deleted).unwrap_or(i32::MAX);
    out.append(cstr!("n"), n);
    out
}

fn append_error(out: &mut RawDocumentBuf, error: Option<&LastError>) {
    match error {
        None => out.append(cstr!("err"), bson::RawBson::Null),
        Some(error) => {
            out.append(cstr!("err"), error.message.as_str());
            out.append(cstr!("code"), error.code);
            out.append(cstr!("codeName"), error.code_name.as_str());
        }
    }
}

/// The reply to `getPrevError`: the last write that failed, and how many writes ago that was.
pub(crate) fn previous_reply(connection: &Connection) -> RawDocumentBuf {
    let (error, writes_ago) = match connection.previous_error() {
        Some((error, writes_ago)) => (Some(error), writes_ago),
        None => (None, -1),
    };
    let mut out = RawDocumentBuf::new();
    append_error(&mut out, error.as_ref());
    out.append(cstr!("n"), 0);
    out.append(cstr!("nPrev"), writes_ago);
    out.append(cstr!("ok"), 1.0);
    out
}

/// A command whose outcome is what `getLastError` tells about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Insert,
    Update,
    Delete,
    FindAndModify,
}

impl Write {
    pub fn of(name: &str) -> Option<Write> {
        match name {
            "insert" => Some(Write::Insert),
            "update" => Some(Write::Update),
            "delete" => Some(Write::Delete),
            "findAndModify" | "findandmodify" => Some(Write::FindAndModify),
            _ => None,
        }
    }
}

/// What `getLastError` will say of the write that was answered like this.
pub(crate) fn outcome(write: Write, reply: &RawDocument) -> LastWrite {
    let mut out = LastWrite {
        time: match field(reply, "operationTime") {
            Some(RawBsonRef::Timestamp(time)) => Some(time),
            _ => None,
        },
        ..LastWrite::default()
    };
    if let Some(error) = CommandError::from_reply(reply) {
        out.error = Some(LastError {
            code: error.code.code(),
            code_name: error.code.name().into_owned(),
            message: error.message,
        });
        return out;
    }
    let count = || match field(reply, "n") {
        Some(RawBsonRef::Int32(n)) => i64::from(n),
        Some(RawBsonRef::Int64(n)) => n,
        Some(RawBsonRef::Double(n)) => n as i64,
        _ => 0,
    };
    if let Some(RawBsonRef::Document(error)) = first(reply, "writeErrors") {
        let code = error.get_i32("code").unwrap_or_default();
        out.error = Some(LastError {
            code,
            code_name: ErrorCode::from_code(code).name().into_owned(),
            message: error.get_str("errmsg").unwrap_or_default().to_owned(),
        });
    }
    // An insert's n was always 0 in getLastError.
    if write != Write::Insert {
        out.matched_or_deleted = count();
    }
    if write == Write::Update {
        let upserted = match first(reply, "upserted") {
            Some(RawBsonRef::Document(upserted)) => upserted.get("_id").ok().flatten(),
            _ => None,
        };
        out.updated_existing = Some(upserted.is_none() && out.matched_or_deleted > 0);
        out.upserted = upserted.map(Into::into);
    }
    out
}

fn first<'a>(reply: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    field(reply, name)?.as_array()?.get(0).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_goes_beyond_a_write_is_waited_for() {
        let waits = |body: RawDocumentBuf| wait(Request::command("test", body)).is_some();
        for body in [
            rawdoc! { "getlasterror": 1 },
            rawdoc! { "getlasterror": 1, "w": 1, "wtimeout": 5 },
            rawdoc! { "getlasterror": 1, "w": "majority" },
            rawdoc! { "getlasterror": 1, "j": false },
        ] {
            assert!(!waits(body.clone()), "{body:?}");
        }
        for body in [
            rawdoc! { "getlasterror": 1, "w": 2 },
            rawdoc! { "getlasterror": 1, "w": 2.0 },
            rawdoc! { "getlasterror": 1, "w": "dc" },
            rawdoc! { "getlasterror": 1, "w": { "dc": 2 } },
            rawdoc! { "getlasterror": 1, "j": true },
            rawdoc! { "getlasterror": 1, "fsync": 1 },
        ] {
            assert!(waits(body.clone()), "{body:?}");
        }
    }

    #[test]
    fn a_wait_that_took_too_long_is_no_error_of_the_write() {
        let write = LastWrite {
            matched_or_deleted: 3,
            ..LastWrite::default()
        };
        let waited = |code: i32| {
            let error = rawdoc! { "code": code, "errmsg": "why" };
            after_wait(
                &write,
                7,
                &rawdoc! { "writeConcernError": error, "ok": 1.0 },
            )
        };
        let late = waited(64);
        assert_eq!(late.get_str("err").unwrap(), "timeout");
        assert!(late.get_bool("wtimeout").unwrap());
        assert_eq!(late.get_i32("n").unwrap(), 3);
        assert_eq!(late.get_f64("ok").unwrap(), 1.0);
        let unknown = waited(79);
        assert_eq!(unknown.get_f64("ok").unwrap(), 0.0);
        assert_eq!(unknown.get_i32("code").unwrap(), 79);
        let fine = after_wait(&write, 7, &rawdoc! { "ok": 1.0 });
        assert_eq!(fine.get("err").unwrap(), Some(RawBsonRef::Null));
    }
}
