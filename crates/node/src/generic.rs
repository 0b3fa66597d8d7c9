//! The fields that any command may carry: session, deadline, concerns.

use std::time::Duration;

use banyan_document::elements;
use banyan_wire::{CommandError, ErrorCode, ReadMode, ReadPreference, Request};
use bson::{RawArray, RawBsonRef, RawDocument};

use crate::forms;
use crate::params;

/// The fields that every command takes, as they stand in the request.
#[derive(Debug, Default, Clone, Copy)]
pub struct Generic<'a> {
    pub lsid: Option<&'a RawDocument>,
    pub txn_number: Option<i64>,
    pub autocommit: Option<bool>,
    pub start_transaction: Option<bool>,
    pub stmt_id: Option<i32>,
    pub stmt_ids: Option<&'a RawArray>,
    pub max_time_ms: Option<u64>,
    pub read_concern: Option<&'a RawDocument>,
    pub write_concern: Option<&'a RawDocument>,
    pub read_preference: Option<ReadMode>,
    pub cluster_time: Option<RawBsonRef<'a>>,
    pub comment: Option<RawBsonRef<'a>>,
    /// Whom a router sends the request for.
    pub audit: Option<RawBsonRef<'a>>,
    /// Whether blocked writes are open to whoever the request is sent for.
    pub may_bypass_write_blocking: Option<bool>,
    pub shard_version: Option<RawBsonRef<'a>>,
    pub database_version: Option<RawBsonRef<'a>>,
    /// The legacy OP_QUERY bit, given to commands as `$readPreference`'s absence.
    pub secondary_ok: bool,
}

/// Whose fields they are.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// What messages call it.
    pub parsed_as: &'static str,
    pub writes: bool,
    /// Whether it takes a write concern, or may.
    pub takes_concern: bool,
    /// Whether it is a batch of statements, each with a number of its own.
    pub has_statements: bool,
}

impl<'a> Generic<'a> {
    /// What the request says of its time; 0 says nothing.
    pub fn time_max(&self) -> Option<Duration> {
        let time = self.max_time_ms.filter(|milliseconds| *milliseconds > 0);
        time.map(Duration::from_millis)
    }

    /// Walks the command's fields once: their form is checked, the generic ones are parsed, and what
    /// the command does not accept is refused.
    pub fn parse(
        request: &'a Request,
        command: Command,
        check_form: impl Fn(params::Field<'_>) -> Result<(), CommandError>,
        accepts: impl Fn(&str) -> bool,
    ) -> Result<Generic<'a>, CommandError> {
        let mut generic = Generic::default();
        // The first one is the command's own name, which was found already.
        for element in elements(&request.body).skip(1) {
            let name = element.name();
            // It was read when the message came in.
            if name == "$db" {
                continue;
            }
            let field = params::Field {
                command: command.parsed_as,
                name,
                value: element.value(),
            };
            check_form(field)?;
            if !generic.take(field, command)? && !accepts(name) {
                return Err(params::unknown_field(command.parsed_as, name));
            }
        }
        Ok(generic)
    }

    /// Whether the field is one of the generic ones; its value is kept if so.
    fn take(&mut self, field: params::Field<'a>, command: Command) -> Result<bool, CommandError> {
        let params::Field { name, value, .. } = field;
        match name {
            "$audit" => self.audit = Some(value),
            "$client"
            | "$configServerState"
            | "$oplogQueryData"
            | "$replData"
            | "$configTime"
            | "$topologyTime"
            | "$gleStats"
            | "apiVersion"
            | "apiStrict"
            | "apiDeprecationErrors"
            | "allowImplicitCollectionCreation"
            | "clientOperationKey"
            | "maxTimeMSOpOnly"
            | "coordinator"
            | "helpCommand"
            | "help" => {}
            "mayBypassWriteBlocking" => self.may_bypass_write_blocking = Some(field.bool()?),
            "lsid" => self.lsid = session_field(field).document_or_null()?,
            "txnNumber" | "autocommit" | "startTransaction" if field.is_null() => {}
            "txnNumber" => {
                let RawBsonRef::Int64(number) = value else {
                    return Err(session_field(field).wrong_type("type 'long'"));
                };
                self.txn_number = Some(number);
            }
            "autocommit" => self.autocommit = Some(session_flag(field)?),
            "startTransaction" => self.start_transaction = Some(session_flag(field)?),
            // Only statements that write have numbers.
            "stmtId" if !command.writes || field.is_null() => {}
            "stmtId" => {
                let RawBsonRef::Int32(number) = value else {
                    return Err(field.wrong_type("type 'int'"));
                };
                self.stmt_id = Some(number);
            }
            "stmtIds" if !command.has_statements => return Ok(false),
            "stmtIds" => {
                forms::ints(field)?;
                self.stmt_ids = Some(field.array()?);
            }
            "maxTimeMS" => self.max_time_ms = Some(params::max_time_ms(field)?),
            "readConcern" => {
                self.read_concern = Some(value.as_document().ok_or_else(|| {
                    CommandError::new(
                        ErrorCode::FailedToParse,
                        "readConcern field should be an object",
                    )
                })?);
            }
            "writeConcern"
                if !command.takes_concern && !matches!(value, RawBsonRef::Document(_)) =>
            {
                return Err(refused_concern());
            }
            "writeConcern" => self.write_concern = Some(field.document()?),
            // Which member it's sent to is decided by now: only the mode still says something. On
            // a write it says nothing at all.
            "$readPreference" => {
                let mode = ReadPreference::parse(value)?.mode;
                self.read_preference = Some(mode).filter(|_| !command.writes);
            }
            "$queryOptions" if !command.writes => {
                // The 2.x shell and mongos pack the read preference one level down.
                let inner = field.document()?.get("$readPreference").ok().flatten();
                let parsed = inner.map(ReadPreference::parse).transpose()?;
                self.read_preference = parsed.map(|preference| preference.mode);
            }
            "$queryOptions" => {}
            "$clusterTime" => self.cluster_time = Some(value),
            "comment" => self.comment = Some(value),
            "shardVersion" => self.shard_version = Some(value),
            "databaseVersion" => self.database_version = Some(value),
            "slaveOk" | "secondaryOk" | "$secondaryOk" => self.secondary_ok = field.bool()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The client takes the answer of a secondary.
    pub fn may_read_secondary(&self) -> bool {
        self.secondary_ok || self.read_preference.unwrap_or_default() != ReadMode::Primary
    }
}

/// A field of the session's part of a command, by the name that messages know it by.
fn session_field(field: params::Field<'_>) -> params::Field<'_> {
    params::Field {
        command: "OperationSessionInfo",
        ..field
    }
}

/// Whether any command may carry a field of this name.
pub fn is_generic(field: params::Field<'_>, command: Command) -> bool {
    // A generic one of the wrong form is an error.
    !matches!(Generic::default().take(field, command), Ok(false))
}

fn session_flag(field: params::Field<'_>) -> Result<bool, CommandError> {
    match field.value {
        RawBsonRef::Boolean(flag) => Ok(flag),
        _ => Err(session_field(field).wrong_type("type 'bool'")),
    }
}

/// A write concern of what writes nothing.
pub fn refused_concern() -> CommandError {
    CommandError::new(
        ErrorCode::InvalidOptions,
        "Command does not support writeConcern",
    )
}
