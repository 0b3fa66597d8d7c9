//! One member of a configuration.

use std::time::Duration;

use banyan_wire::CommandError;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::field::{Field, fields, invalid, missing, owned, small};
use crate::errors::shown;

const OF: &str = "MemberConfig";
const PRIORITY_MAX: f64 = 1000.0;
const DELAY_SECONDS_MAX: i64 = 3600 * 24 * 366;
pub const HOST_BYTES_MAX: usize = 512;

#[derive(Debug, Clone, PartialEq)]
pub struct MemberConfig {
    pub id: i64,
    /// `name:port`.
    pub host: String,
    pub arbiter_only: bool,
    pub build_indexes: bool,
    pub hidden: bool,
    pub priority: f64,
    pub tags: RawDocumentBuf,
    pub delay_seconds: i64,
    pub votes: bool,
}

impl MemberConfig {
    pub fn new(id: i64, host: &str) -> MemberConfig {
        MemberConfig {
            id,
            host: host.to_owned(),
            arbiter_only: false,
            build_indexes: true,
            hidden: false,
            priority: 1.0,
            tags: RawDocumentBuf::new(),
            delay_seconds: 0,
            votes: true,
        }
    }

    /// It may become the primary.
    pub fn electable(&self) -> bool {
        self.priority > 0.0 && !self.arbiter_only && self.votes
    }

    /// It holds data and votes: it counts for a majority of writes.
    pub fn is_writable_voter(&self) -> bool {
        self.votes && !self.arbiter_only
    }

    /// How long ago an entry must have been written to be applied there.
    pub fn apply_delay(&self) -> Duration {
        match self.arbiter_only {
            true => Duration::ZERO,
            false => Duration::from_secs(self.delay_seconds.unsigned_abs()),
        }
    }

    pub(super) fn parse(document: &RawDocument) -> Result<MemberConfig, CommandError> {
        Self::read(document).map_err(|error| {
            let member = shown(bson::RawBsonRef::Document(document));
            invalid(format!(
                "member: {member} :: caused by :: {}",
                error.message
            ))
        })
    }

    fn read(document: &RawDocument) -> Result<MemberConfig, CommandError> {
        let mut member = MemberConfig::new(-1, "");
        let mut delayed_by = None;
        let mut has_host = false;
        for field in fields(OF, document) {
            let field = field?;
            match field.name {
                "_id" => member.id = member_id(&field)?,
                "host" => {
                    member.host = with_port(field.text()?)?;
                    has_host = true;
                }
                "newlyAdded" => {
                    return Err(invalid(
                        "Cannot provide newlyAdded field to member config during reconfig.",
                    ));
                }
                "arbiterOnly" | "buildIndexes" | "hidden" | "priority" | "tags" | "votes"
                | "secondaryDelaySecs" | "slaveDelay" | "horizons"
                    if field.is_null() => {}
                "arbiterOnly" => member.arbiter_only = field.flag()?,
                "buildIndexes" => member.build_indexes = field.flag()?,
                "hidden" => member.hidden = field.flag()?,
                "priority" => member.priority = priority(&field)?,
                "tags" => member.tags = owned(Some(field.document()?)),
                "secondaryDelaySecs" | "slaveDelay" => {
                    let seconds = field.at_least(0, field.integer()?)?;
                    member.delay_seconds = field.at_most(DELAY_SECONDS_MAX, seconds)?;
                    if delayed_by.replace(field.name).is_some() {
                        return Err(invalid(
                            "secondaryDelaySecs and slaveDelay are the same setting; give one",
                        ));
                    }
                }
                "votes" => {
                    let votes = field.at_most(1, field.at_least(0, field.integer()?)?)?;
                    member.votes = votes == 1;
                }
                "horizons" => return Err(horizons(&field)),
                _ => return Err(field.unknown()),
            }
        }
        if document.get("_id").ok().flatten().is_none() {
            return Err(missing(OF, "_id"));
        }
        if !has_host {
            return Err(missing(OF, "host"));
        }
        member.settle()?;
        Ok(member)
    }

    /// What of one member's settings excludes another.
    fn settle(&mut self) -> Result<(), CommandError> {
        if self.arbiter_only {
            if !self.votes {
                return Err(invalid("Arbiter must vote (cannot have 0 votes)"));
            }
            // The default of the others is none of an arbiter's.
            if self.priority == 1.0 {
                self.priority = 0.0;
            }
        }
        for (what, set) in [
            ("non-voting (votes:0)", !self.votes),
            ("secondaryDelaySecs is used", self.delay_seconds > 0),
            ("hidden=true", self.hidden),
            ("buildIndexes=false", !self.build_indexes),
        ] {
            if set && self.priority != 0.0 {
                return Err(invalid(format!("priority must be 0 when {what}")));
            }
        }
        Ok(())
    }

    pub(super) fn check_tags(&self) -> Result<(), CommandError> {
        for (name, value) in self.tags.iter().flatten() {
            if value.as_str().is_none() {
                return Err(invalid(format!(
                    "tags.{} field has non-string value of type {}",
                    name.as_str(),
                    banyan_document::kind::name(&value)
                )));
            }
        }
        if self.arbiter_only && !self.tags.is_empty() {
            return Err(invalid("Cannot set tags on arbiters."));
        }
        Ok(())
    }

    pub(super) fn to_document(&self) -> RawDocumentBuf {
        rawdoc! {
            "_id": small(self.id),
            "host": self.host.as_str(),
            "arbiterOnly": self.arbiter_only,
            "buildIndexes": self.build_indexes,
            "hidden": self.hidden,
            "priority": self.priority,
            "tags": self.tags.clone(),
            "secondaryDelaySecs": self.delay_seconds,
            "votes": i32::from(self.votes),
        }
    }
}

fn member_id(field: &Field<'_>) -> Result<i64, CommandError> {
    let number = banyan_wire::params::number(field.value).ok_or_else(|| {
        invalid(format!(
            "Element for MemberId was not a number: {}: {}",
            field.name,
            shown(field.value)
        ))
    })?;
    if number < 0 {
        return Err(invalid(format!(
            "_id field value of {number} can't be a negative number"
        )));
    }
    field.at_most(i64::from(i32::MAX), number)
}

fn priority(field: &Field<'_>) -> Result<f64, CommandError> {
    let priority = field.double()?;
    if priority.is_nan() || priority < 0.0 {
        return Err(field.out_of_range(">= 0", priority));
    }
    if priority > PRIORITY_MAX {
        return Err(field.out_of_range(&format!("<= {PRIORITY_MAX}"), priority));
    }
    Ok(priority)
}

fn horizons(field: &Field<'_>) -> CommandError {
    match field.document() {
        Err(error) => error,
        Ok(horizons) if horizons.is_empty() => {
            invalid("The horizons field cannot be empty, if present.")
        }
        Ok(_) => invalid(
            "horizons are not supported: every client is told the 'host' of the configuration",
        ),
    }
}

/// `name`, `name:port`, `[::1]`, `[::1]:port`, always with the port.
fn with_port(host: &str) -> Result<String, CommandError> {
    if host.is_empty() {
        return Err(invalid(
            "Empty host component parsing HostAndPort from \"\"",
        ));
    }
    let odd = |c: char| c.is_whitespace() || matches!(c, '/' | ',' | '\0');
    if host.len() > HOST_BYTES_MAX || host.contains(odd) {
        return Err(invalid(format!("\"{host}\" is not the name of a host")));
    }
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inner, "")) => (inner, None),
            Some((inner, after)) if after.starts_with(':') => (inner, Some(&after[1..])),
            _ => return Err(invalid(format!("Missing ']' or ':port' in \"{host}\""))),
        },
        None if host.matches(':').count() > 1 => {
            return Err(invalid(format!(
                "More than one ':' detected. If this is an ipv6 address, it needs to be \
                 surrounded by '[' and ']'; {host}"
            )));
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    if name.is_empty() {
        return Err(invalid(format!(
            "Empty host component parsing HostAndPort from \"{host}\""
        )));
    }
    let Some(port) = port else {
        return Ok(format!("{host}:27017"));
    };
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid("Did not consume whole string."));
    }
    match port.parse::<u16>() {
        Ok(number) if number > 0 => Ok(host.to_owned()),
        _ => Err(invalid(format!(
            "Port number {port} out of range parsing HostAndPort from \"{host}\""
        ))),
    }
}

pub fn host_name(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

pub fn is_local_host(name: &str) -> bool {
    name == "localhost" || name == "::1" || name == "[::1]" || name.starts_with("127.")
}
