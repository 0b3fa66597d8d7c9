//! A read concern as a command gives it.

use banyan_document::kind;
use banyan_replication::clock;
use banyan_replication::set::write_concern::Provenance;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, Timestamp};

use crate::params::{self, Field};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Local,
    Available,
    Majority,
    Linearizable,
    Snapshot,
}

impl Level {
    pub fn from_name(name: &str) -> Option<Level> {
        match name {
            "local" => Some(Level::Local),
            "available" => Some(Level::Available),
            "majority" => Some(Level::Majority),
            "linearizable" => Some(Level::Linearizable),
            "snapshot" => Some(Level::Snapshot),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Local => "local",
            Level::Available => "available",
            Level::Majority => "majority",
            Level::Linearizable => "linearizable",
            Level::Snapshot => "snapshot",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadConcern {
    pub level: Option<Level>,
    pub after: Option<Timestamp>,
    pub at: Option<Timestamp>,
    pub has_provenance: bool,
}

pub(super) fn invalid(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::InvalidOptions, text)
}

pub(super) fn wrong_type(name: &str, expected: &str, value: RawBsonRef<'_>) -> CommandError {
    CommandError::new(
        ErrorCode::TypeMismatch,
        format!(
            "\"{name}\" had the wrong type. Expected {expected}, found {}",
            kind::name(&value)
        ),
    )
}

fn timestamp(name: &str, value: RawBsonRef<'_>) -> Result<Timestamp, CommandError> {
    let RawBsonRef::Timestamp(time) = value else {
        return Err(wrong_type(name, "timestamp", value));
    };
    if clock::to_bits(time) == 0 {
        return Err(invalid(format!("{name} cannot be a null timestamp")));
    }
    Ok(time)
}

impl ReadConcern {
    pub fn parse(document: &RawDocument) -> Result<ReadConcern, CommandError> {
        let mut parsed = ReadConcern::default();
        for (name, value) in document.iter().flatten() {
            match name.as_str() {
                "level" => {
                    let RawBsonRef::String(name) = value else {
                        return Err(wrong_type("level", "string", value));
                    };
                    parsed.level = Some(Level::from_name(name).ok_or_else(unknown_level)?);
                }
                "afterClusterTime" => parsed.after = Some(timestamp("afterClusterTime", value)?),
                "atClusterTime" => parsed.at = Some(timestamp("atClusterTime", value)?),
                "afterOpTime" if !matches!(value, RawBsonRef::Document(_)) => {
                    return Err(wrong_type("afterOpTime", "object", value));
                }
                "provenance" if params::is_null(value) => {}
                "provenance" => {
                    parsed.has_provenance = true;
                    check_provenance(value)?;
                }
                "$tenant" => {}
                name => {
                    return Err(invalid(format!(
                        "Unrecognized option in readConcern: {name}"
                    )));
                }
            }
        }
        parsed.check()?;
        Ok(parsed)
    }

    /// What contradicts itself, whatever the command.
    fn check(&self) -> Result<(), CommandError> {
        if self.at.is_some() && self.after.is_some() {
            return Err(invalid(
                "Specifying a timestamp for readConcern snapshot in a causally consistent session \
                 is not allowed. See \
                 https://docs.mongodb.com/manual/core/read-isolation-consistency-recency/\
                 #causal-consistency",
            ));
        }
        let weak = matches!(self.level, Some(Level::Available | Level::Linearizable));
        if self.after.is_some() && weak {
            return Err(invalid(
                "afterClusterTime field can be set only if level is equal to majority, local, or \
                 snapshot",
            ));
        }
        if self.at.is_some() && self.level != Some(Level::Snapshot) {
            return Err(invalid(
                "atClusterTime field can be set only if level is equal to snapshot",
            ));
        }
        Ok(())
    }

    /// What only a member of a set can promise.
    pub(super) fn check_standalone(&self) -> Result<(), CommandError> {
        let refuse = |code, text: &str| Err(CommandError::new(code, text));
        match self.level {
            Some(Level::Linearizable) => refuse(
                ErrorCode::NotAReplicaSet,
                "node needs to be a replica set member to use read concern",
            ),
            Some(Level::Snapshot) => refuse(
                ErrorCode::NotAReplicaSet,
                "node needs to be a replica set member to use readConcern: snapshot",
            ),
            _ if self.after.is_some() => refuse(
                ErrorCode::IllegalOperation,
                "Cannot specify afterClusterTime readConcern without replication enabled",
            ),
            _ => Ok(()),
        }
    }
}

fn check_provenance(value: RawBsonRef<'_>) -> Result<(), CommandError> {
    let field = Field {
        command: "ReadConcernArgs::parse",
        name: "provenance",
        value,
    };
    let name = field.str()?;
    match Provenance::from_name(name) {
        Some(_) => Ok(()),
        None => Err(CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Enumeration value '{name}' for field 'ReadConcernArgs::parse.provenance' is not a \
                 valid value."
            ),
        )),
    }
}

pub fn unknown_level() -> CommandError {
    CommandError::new(
        ErrorCode::FailedToParse,
        "readConcern.level must be either 'local', 'majority', 'linearizable', 'available', or \
         'snapshot'",
    )
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn time(seconds: u32) -> Timestamp {
        Timestamp {
            time: seconds,
            increment: 1,
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let refused = [
            (rawdoc! { "level": "strong" }, 9),
            (rawdoc! { "level": 5 }, 14),
            (rawdoc! { "what": 1 }, 72),
            (rawdoc! { "afterClusterTime": 5 }, 14),
            (rawdoc! { "afterClusterTime": clock::from_bits(0) }, 72),
            (rawdoc! { "atClusterTime": time(1) }, 72),
            (
                rawdoc! { "level": "majority", "atClusterTime": time(1) },
                72,
            ),
            (
                rawdoc! { "level": "available", "afterClusterTime": time(1) },
                72,
            ),
            (
                rawdoc! { "level": "snapshot", "afterClusterTime": time(1), "atClusterTime": time(1) },
                72,
            ),
        ];
        for (document, code) in refused {
            let error = ReadConcern::parse(&document).unwrap_err();
            assert_eq!(error.code.code(), code, "{document:?}: {error}");
        }
        let concern = rawdoc! { "level": "snapshot", "atClusterTime": time(7) };
        assert_eq!(ReadConcern::parse(&concern).unwrap().at, Some(time(7)));
    }
}
