//! `settings` of a configuration.

use std::time::Duration;

use banyan_document::kind;
use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::{RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::field::{Field, fields, invalid, owned, small};
use super::member::MemberConfig;

const OF: &str = "ReplSetConfig.settings";

pub const HEARTBEAT_MS: i64 = 100;
pub const ELECTION_TIMEOUT_MS: i64 = 1000;

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub chaining_allowed: bool,
    pub heartbeat_interval_ms: i64,
    pub heartbeat_timeout_seconds: i64,
    pub election_timeout_ms: i64,
    pub catch_up_timeout_ms: i64,
    pub catch_up_takeover_delay_ms: i64,
    pub last_error_modes: RawDocumentBuf,
    pub replica_set_id: Option<ObjectId>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            chaining_allowed: true,
            heartbeat_interval_ms: HEARTBEAT_MS,
            heartbeat_timeout_seconds: 10,
            election_timeout_ms: ELECTION_TIMEOUT_MS,
            catch_up_timeout_ms: -1,
            catch_up_takeover_delay_ms: 30_000,
            last_error_modes: RawDocumentBuf::new(),
            replica_set_id: None,
        }
    }
}

impl Settings {
    pub(super) fn parse(document: &RawDocument) -> Result<Settings, CommandError> {
        let mut settings = Settings::default();
        for field in fields(OF, document) {
            let field = field?;
            match field.name {
                "chainingAllowed" if !field.is_null() => {
                    settings.chaining_allowed = field.flag()?;
                }
                "heartbeatIntervalMillis" => {
                    settings.heartbeat_interval_ms = field.positive(field.exact()?)?;
                }
                "heartbeatTimeoutSecs" => {
                    settings.heartbeat_timeout_seconds = field.positive(field.exact()?)?;
                }
                "electionTimeoutMillis" => {
                    settings.election_timeout_ms = field.positive(field.exact()?)?;
                }
                "catchUpTimeoutMillis" => {
                    settings.catch_up_timeout_ms = field.at_least(-1, field.exact()?)?;
                }
                "catchUpTakeoverDelayMillis" => {
                    settings.catch_up_takeover_delay_ms = field.at_least(-1, field.exact()?)?;
                }
                "getLastErrorModes" if !field.is_null() => {
                    settings.last_error_modes = owned(Some(modes(&field)?));
                }
                "getLastErrorDefaults" if !field.is_null() => check_defaults(field.document()?)?,
                "replicaSetId" if !field.is_null() => {
                    let id = field.object_id()?;
                    if id.bytes() == [0; 12] {
                        return Err(invalid("replicaSetId field value cannot be null"));
                    }
                    settings.replica_set_id = Some(id);
                }
                // As MongoDB has it: a setting that it does not know is passed over.
                _ => {}
            }
        }
        Ok(settings)
    }

    /// How often the others are asked how they are: as configured, within reason.
    pub fn heartbeat(&self, members: usize) -> Duration {
        /// A large set asks less often, so that asking stays a small part of the work.
        const LEAST_FOR_A_MEMBER: Duration = Duration::from_millis(20);
        const LONGEST: Duration = Duration::from_secs(3600);
        let wanted = Duration::from_millis(self.heartbeat_interval_ms.unsigned_abs());
        let least = LEAST_FOR_A_MEMBER * u32::try_from(members).unwrap_or(u32::MAX);
        wanted.clamp(least.min(LONGEST), LONGEST)
    }

    /// How long an asked member may take to answer before it's down.
    pub fn heartbeat_timeout(&self) -> Duration {
        Duration::from_secs(self.heartbeat_timeout_seconds.clamp(1, 3600).unsigned_abs())
    }

    pub fn election_timeout(&self) -> Duration {
        const SHORTEST_MS: i64 = 50;
        const LONGEST_MS: i64 = 24 * 3600 * 1000;
        let timeout_ms = self.election_timeout_ms.clamp(SHORTEST_MS, LONGEST_MS);
        Duration::from_millis(timeout_ms.unsigned_abs())
    }

    /// The leader's own heartbeat: with fewer than two of them in an election timeout, one lost
    /// message would be a lost primary.
    pub fn leader_heartbeat(&self) -> Duration {
        let wanted = Duration::from_millis(self.heartbeat_interval_ms.unsigned_abs());
        wanted.min(self.election_timeout() / 5)
    }

    /// Every tag that a mode counts is one that some member has.
    pub(super) fn check_modes(&self, members: &[MemberConfig]) -> Result<(), CommandError> {
        for (mode, value) in self.last_error_modes.iter().flatten() {
            for (tag, count) in value
                .as_document()
                .into_iter()
                .flat_map(|tags| tags.iter())
                .flatten()
            {
                let tag = tag.as_str();
                let path = format!("getLastErrorModes.{}.{tag}", mode.as_str());
                let Some(count_value) = banyan_wire::params::number(count) else {
                    return Err(invalid(format!(
                        "Expected {path} to be a number, not {}",
                        kind::name(&count)
                    )));
                };
                if count_value <= 0 {
                    return Err(invalid(format!(
                        "Value of {path} must be positive, but found {count_value}"
                    )));
                }
                let known =
                    |member: &MemberConfig| member.tags.get(tag).is_ok_and(|value| value.is_some());
                if !members.iter().any(known) {
                    return Err(invalid(format!("No replica set tag key {tag} in config")));
                }
            }
        }
        Ok(())
    }

    pub(super) fn to_document(&self) -> RawDocumentBuf {
        let mut out = rawdoc! {
            "chainingAllowed": self.chaining_allowed,
            "heartbeatIntervalMillis": small(self.heartbeat_interval_ms),
            "heartbeatTimeoutSecs": small(self.heartbeat_timeout_seconds),
            "electionTimeoutMillis": small(self.election_timeout_ms),
            "catchUpTimeoutMillis": small(self.catch_up_timeout_ms),
            "catchUpTakeoverDelayMillis": small(self.catch_up_takeover_delay_ms),
            "getLastErrorModes": self.last_error_modes.clone(),
            "getLastErrorDefaults": { "w": 1, "wtimeout": 0 },
        };
        if let Some(id) = self.replica_set_id {
            out.append(cstr!("replicaSetId"), id);
        }
        out
    }
}

/// `{mode: {tag: count}}`; the tags are looked at once all members are known.
fn modes<'a>(field: &Field<'a>) -> Result<&'a RawDocument, CommandError> {
    let Some(modes) = field.value.as_document() else {
        return Err(invalid(format!(
            "Expected getLastErrorModes to be an Object, it actually had type {}",
            kind::name(&field.value)
        )));
    };
    for mode in fields("getLastErrorModes", modes) {
        let mode = mode?;
        if mode.value.as_document().is_none() {
            return Err(invalid(format!(
                "Expected getLastErrorModes.{} to be an Object, not {}",
                mode.name,
                kind::name(&mode.value)
            )));
        }
    }
    Ok(modes)
}

/// The default write concern is set by `setDefaultRWConcern`; here only what is so anyway may be
/// said.
fn check_defaults(defaults: &RawDocument) -> Result<(), CommandError> {
    let mut usual = true;
    for field in fields("WriteConcernOptions", defaults) {
        let field = field?;
        let number = banyan_wire::params::number(field.value);
        match field.name {
            "w" if number == Some(0) => {
                return Err(invalid(
                    "Default write concern mode must wait for at least 1 member",
                ));
            }
            "w" => usual &= number == Some(1),
            "wtimeout" => usual &= number == Some(0),
            "j" | "journal" | "fsync" => usual &= !field.flag()?,
            "provenance" | "getLastError" => {}
            _ => return Err(field.unknown()),
        }
    }
    if !usual {
        return Err(invalid(
            "Default write concern (getLastErrorDefaults) must be {w: 1, wtimeout: 0}; use \
             setDefaultRWConcern to set a cluster-wide default",
        ));
    }
    Ok(())
}
