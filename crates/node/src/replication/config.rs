//! The set's configuration: what `local.system.replset` holds and `rs.conf()` shows.
//!
//! It's parsed once, checked by MongoDB's rules and error codes, and written out again with every
//! default filled in. Which members vote in Raft follows from it (see `reconcile`).

use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::params;
use banyan_document::kind::name_of as type_name;

pub const MEMBERS_MAX: usize = 50;
pub const VOTERS_MAX: usize = 7;
pub const HEARTBEAT_MS: i64 = 100;
pub const ELECTION_TIMEOUT_MS: i64 = 1000;

#[derive(Debug, Clone, PartialEq)]
pub struct SetConfig {
    pub name: String,
    pub version: i64,
    pub term: i64,
    pub config_server: bool,
    pub members: Vec<MemberConfig>,
    pub settings: Settings,
}

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

fn invalid(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::InvalidReplicaSetConfig, message)
}

fn incompatible(message: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::NewReplicaSetConfigurationIncompatible, message)
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

    fn parse(document: &RawDocument) -> Result<MemberConfig, CommandError> {
        let mut member = MemberConfig::new(-1, "");
        let mut votes = None;
        let mut priority = None;
        for element in document.iter() {
            let (name, value) = element.map_err(|error| invalid(error.to_string()))?;
            let field = Field {
                of: "members",
                name: name.as_str(),
                value,
            };
            match name.as_str() {
                "_id" => member.id = field.integer()?,
                "host" => member.host = with_port(field.text()?),
                "arbiterOnly" => member.arbiter_only = field.flag()?,
                "buildIndexes" => member.build_indexes = field.flag()?,
                "hidden" => member.hidden = field.flag()?,
                "priority" => priority = Some(field.double()?),
                "tags" => member.tags = field.document_or_null()?,
                "secondaryDelaySecs" | "slaveDelay" => member.delay_seconds = field.integer()?,
                "votes" => votes = Some(field.integer()?),
                other => {
                    return Err(invalid(format!(
                        "BSON field 'MemberConfig.{other}' is an unknown field."
                    )));
                }
            }
        }
        member.votes = match votes {
            None | Some(1) => true,
            Some(0) => false,
            Some(other) => {
                return Err(invalid(format!(
                    "votes field value is {other} but must be 0 or 1"
                )));
            }
        };
        member.priority = priority.unwrap_or(if member.arbiter_only { 0.0 } else { 1.0 });
        member.check()?;
        Ok(member)
    }

    fn check(&self) -> Result<(), CommandError> {
        if !(0..=255).contains(&self.id) {
            return Err(invalid(format!(
                "_id field value of {} is out of range.",
                self.id
            )));
        }
        check_host(&self.host)?;
        if !(0.0..=1000.0).contains(&self.priority) {
            return Err(invalid(format!(
                "priority field value of {} is out of range",
                self.priority
            )));
        }
        if self.arbiter_only {
            if !self.tags.is_empty() {
                return Err(invalid("Cannot set tags on arbiters."));
            }
            if !self.votes {
                return Err(invalid("Arbiter must vote (cannot have 0 votes)"));
            }
            if self.priority != 0.0 && self.priority != 1.0 {
                return Err(invalid("Arbiters cannot have a priority greater than zero"));
            }
        }
        if self.delay_seconds < 0 || self.delay_seconds > 3600 * 24 * 366 {
            return Err(invalid(format!(
                "secondaryDelaySecs field value of {} seconds is out of range",
                self.delay_seconds
            )));
        }
        for (what, wrong) in [
            ("secondaryDelaySecs is set", self.delay_seconds > 0),
            ("hidden is true", self.hidden),
            ("buildIndexes is false", !self.build_indexes),
            ("votes is 0", !self.votes),
        ] {
            if wrong && self.priority != 0.0 && !self.arbiter_only {
                return Err(invalid(format!("priority must be 0 when {what}")));
            }
        }
        Ok(())
    }

    fn to_document(&self) -> RawDocumentBuf {
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

impl SetConfig {
    /// What `rs.initiate()` makes when it's given nothing.
    pub fn of_one(name: &str, host: &str) -> SetConfig {
        SetConfig {
            name: name.to_owned(),
            version: 1,
            term: 0,
            config_server: false,
            members: vec![MemberConfig::new(0, host)],
            settings: Settings::default(),
        }
    }

    pub fn parse(document: &RawDocument) -> Result<SetConfig, CommandError> {
        let mut config = SetConfig::of_one("", "");
        config.members.clear();
        config.version = 1;
        config.term = -1;
        let mut listed = false;
        for element in document.iter() {
            let (name, value) = element.map_err(|error| invalid(error.to_string()))?;
            let field = Field {
                of: "replica set configuration",
                name: name.as_str(),
                value,
            };
            match name.as_str() {
                "_id" => config.name = field.text()?.to_owned(),
                "version" => config.version = field.integer()?,
                "term" => config.term = field.integer()?,
                "configsvr" => config.config_server = field.flag()?,
                "members" => {
                    config.members = parse_members(value)?;
                    listed = true;
                }
                "settings" => config.settings = Settings::parse(field.document()?)?,
                "protocolVersion" => {
                    if field.integer()? != 1 {
                        return Err(invalid("protocolVersion must be 1"));
                    }
                }
                // Here an acknowledged write is journaled by a majority, whatever is asked for.
                "writeConcernMajorityJournalDefault" => {
                    field.flag()?;
                }
                other => {
                    return Err(invalid(format!(
                        "BSON field 'ReplSetConfig.{other}' is an unknown field."
                    )));
                }
            }
        }
        if !listed {
            return Err(CommandError::new(
                ErrorCode::NoSuchKey,
                "Missing expected field \"members\"",
            ));
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), CommandError> {
        if self.name.is_empty() {
            return Err(invalid(
                "Replica set configuration must have non-empty _id field",
            ));
        }
        if self.version < 1 || self.version > i64::from(i32::MAX) {
            return Err(invalid(format!(
                "version field value of {} is out of range",
                self.version
            )));
        }
        if self.members.is_empty() || self.members.len() > MEMBERS_MAX {
            return Err(invalid(format!(
                "Replica set configuration contains {} members, but must have at least 1 and no \
                 more than {MEMBERS_MAX}",
                self.members.len()
            )));
        }
        let voters = self.voters().count();
        if voters == 0 || voters > VOTERS_MAX {
            return Err(invalid(format!(
                "Replica set configuration contains {voters} voting members, but must have at \
                 least 1 and no more than {VOTERS_MAX}"
            )));
        }
        if !self.members.iter().any(MemberConfig::electable) {
            return Err(invalid(
                "Replica set configuration must contain at least one non-arbiter member with \
                 priority > 0",
            ));
        }
        self.check_distinct()
    }

    fn check_distinct(&self) -> Result<(), CommandError> {
        for (at, member) in self.members.iter().enumerate() {
            for (before, other) in self.members.iter().enumerate().take(at) {
                if member.id == other.id {
                    return Err(invalid(format!(
                        "Found two member configurations with same _id field, members.{before}\
                         ._id == members.{at}._id == {}",
                        member.id
                    )));
                }
                if member.host == other.host {
                    return Err(invalid(format!(
                        "Found two member configurations with same host field, members.{before}\
                         .host == members.{at}.host == {}",
                        member.host
                    )));
                }
            }
        }
        let local = |member: &&MemberConfig| is_local_host(host_name(&member.host));
        let locals = self.members.iter().filter(local).count();
        if locals != 0 && locals != self.members.len() {
            return Err(invalid(format!(
                "Either all host names in a replica set configuration must be localhost \
                 references, or none must be; found {locals} out of {}",
                self.members.len()
            )));
        }
        Ok(())
    }

    /// What a reconfiguration may not do, whoever asks for it.
    pub fn check_successor(&self, new: &SetConfig, force: bool) -> Result<(), CommandError> {
        if self.name != new.name {
            return Err(incompatible(format!(
                "New and old configurations differ in replica set name; old was {}, and new is {}",
                self.name, new.name
            )));
        }
        let id = self.settings.replica_set_id;
        if id != new.settings.replica_set_id {
            return Err(incompatible(format!(
                "New and old configurations differ in replica set ID; old was {}, and new is {}",
                id.unwrap_or_default(),
                new.settings.replica_set_id.unwrap_or_default()
            )));
        }
        if self.config_server != new.config_server {
            return Err(incompatible(
                "New and old configurations differ in the setting of the \"configsvr\" field",
            ));
        }
        if !force && new.version <= self.version {
            return Err(incompatible(format!(
                "New replica set configuration version and term must be greater than old, but \
                 {{version: {}, term: {}}} is not greater than {{version: {}, term: {}}} for \
                 replica set {}",
                new.version, new.term, self.version, self.term, self.name
            )));
        }
        for member in &new.members {
            let same_host = self.members.iter().find(|old| old.host == member.host);
            if let Some(old) = same_host.filter(|old| old.id != member.id) {
                return Err(incompatible(format!(
                    "New and old configurations both have members with host of {} but in the new \
                     configuration the _id field is {} and in the old configuration it is {} for \
                     replica set {}",
                    member.host, member.id, old.id, self.name
                )));
            }
            let same_id = self.members.iter().find(|old| old.id == member.id);
            if same_id.is_some_and(|old| old.arbiter_only != member.arbiter_only) {
                return Err(incompatible(format!(
                    "New and old configurations differ in the setting of the arbiterOnly field \
                     for member {}; to make such a change, remove then re-add the member",
                    member.host
                )));
            }
        }
        if !force && self.changed_voters(new) > 1 {
            return Err(invalid(
                "Non force replica set reconfig can only add or remove at most 1 voting member.",
            ));
        }
        Ok(())
    }

    fn changed_voters(&self, new: &SetConfig) -> usize {
        let votes = |config: &SetConfig, id: i64| {
            config
                .members
                .iter()
                .any(|member| member.id == id && member.votes)
        };
        let added = new
            .voters()
            .filter(|member| !votes(self, member.id))
            .count();
        let removed = self
            .voters()
            .filter(|member| !votes(new, member.id))
            .count();
        added + removed
    }

    pub fn voters(&self) -> impl Iterator<Item = &MemberConfig> {
        self.members.iter().filter(|member| member.votes)
    }

    pub fn majority(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    pub fn by_host(&self, host: &str) -> Option<&MemberConfig> {
        self.members.iter().find(|member| member.host == host)
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut out = rawdoc! {
            "_id": self.name.as_str(),
            "version": small(self.version),
            "term": small(self.term.max(0)),
        };
        if self.config_server {
            out.append(cstr!("configsvr"), true);
        }
        let members = self.members.iter().map(MemberConfig::to_document);
        out.append(cstr!("members"), RawArrayBuf::from_iter(members));
        out.append(cstr!("protocolVersion"), 1_i64);
        out.append(cstr!("writeConcernMajorityJournalDefault"), true);
        out.append(cstr!("settings"), self.settings.to_document());
        out
    }
}

impl Settings {
    fn parse(document: &RawDocument) -> Result<Settings, CommandError> {
        let mut settings = Settings::default();
        for element in document.iter() {
            let (name, value) = element.map_err(|error| invalid(error.to_string()))?;
            let field = Field {
                of: "settings",
                name: name.as_str(),
                value,
            };
            match name.as_str() {
                "chainingAllowed" => settings.chaining_allowed = field.flag()?,
                "heartbeatIntervalMillis" => {
                    settings.heartbeat_interval_ms = field.positive()?;
                }
                "heartbeatTimeoutSecs" => settings.heartbeat_timeout_seconds = field.positive()?,
                "electionTimeoutMillis" => settings.election_timeout_ms = field.positive()?,
                "catchUpTimeoutMillis" => settings.catch_up_timeout_ms = field.integer()?,
                "catchUpTakeoverDelayMillis" => {
                    settings.catch_up_takeover_delay_ms = field.integer()?;
                }
                "getLastErrorModes" => settings.last_error_modes = field.document_or_null()?,
                // Deprecated in MongoDB; the default write concern is a majority here.
                "getLastErrorDefaults" => {}
                "replicaSetId" => match value {
                    RawBsonRef::ObjectId(id) => settings.replica_set_id = Some(id),
                    _ => return Err(field.wrong_type("objectId")),
                },
                other => {
                    return Err(invalid(format!(
                        "BSON field 'ReplSetConfigSettings.{other}' is an unknown field."
                    )));
                }
            }
        }
        // With fewer than two heartbeats in it, one lost message would be a lost primary.
        if settings.election_timeout_ms < 2 * settings.heartbeat_interval_ms {
            settings.heartbeat_interval_ms = (settings.election_timeout_ms / 2).max(1);
        }
        Ok(settings)
    }

    fn to_document(&self) -> RawDocumentBuf {
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

fn parse_members(value: RawBsonRef<'_>) -> Result<Vec<MemberConfig>, CommandError> {
    let RawBsonRef::Array(array) = value else {
        return Err(CommandError::new(
            ErrorCode::TypeMismatch,
            "\"members\" had the wrong type. Expected array",
        ));
    };
    let mut members = Vec::new();
    for item in array {
        let item = item.map_err(|error| invalid(error.to_string()))?;
        let Some(document) = item.as_document() else {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                format!(
                    "Expected type of members.{} to be object, but found {}",
                    members.len(),
                    type_name(item.element_type())
                ),
            ));
        };
        members.push(MemberConfig::parse(document)?);
    }
    Ok(members)
}

fn check_host(host: &str) -> Result<(), CommandError> {
    let port = host
        .rsplit_once(':')
        .and_then(|(_, port)| port.parse::<u16>().ok());
    let odd = |c: char| c.is_whitespace() || c == '/' || c == ',' || c == '\0';
    if host_name(host).is_empty() || host.len() > 512 || host.contains(odd) || port == Some(0) {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            format!("Invalid host \"{host}\" in the replica set configuration"),
        ));
    }
    match port {
        Some(_) => Ok(()),
        None => Err(CommandError::new(
            ErrorCode::FailedToParse,
            format!("Bad digit in the port of host \"{host}\""),
        )),
    }
}

fn with_port(host: &str) -> String {
    let bracketed = host.starts_with('[') && host.ends_with(']');
    if bracketed || !host.contains(':') {
        format!("{host}:27017")
    } else {
        host.to_owned()
    }
}

pub fn host_name(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

pub fn is_local_host(name: &str) -> bool {
    name == "localhost" || name == "::1" || name == "[::1]" || name.starts_with("127.")
}

/// Integers are written as the 32-bit kind where they fit, as MongoDB does.
fn small(value: i64) -> bson::RawBson {
    i32::try_from(value).map_or(bson::RawBson::Int64(value), bson::RawBson::Int32)
}

struct Field<'a> {
    of: &'static str,
    name: &'a str,
    value: RawBsonRef<'a>,
}

impl<'a> Field<'a> {
    fn wrong_type(&self, expected: &str) -> CommandError {
        CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "\"{}\" in {} had the wrong type. Expected {expected}, found {}",
                self.name,
                self.of,
                type_name(self.value.element_type())
            ),
        )
    }

    fn integer(&self) -> Result<i64, CommandError> {
        params::number(self.value).ok_or_else(|| self.wrong_type("number"))
    }

    fn positive(&self) -> Result<i64, CommandError> {
        match self.integer()? {
            value if (1..=i64::from(i32::MAX)).contains(&value) => Ok(value),
            value => Err(invalid(format!(
                "{} must be greater than 0, but found {value}",
                self.name
            ))),
        }
    }

    fn double(&self) -> Result<f64, CommandError> {
        match self.value {
            RawBsonRef::Double(value) => Ok(value),
            _ => Ok(self.integer()? as f64),
        }
    }

    fn flag(&self) -> Result<bool, CommandError> {
        match self.value {
            RawBsonRef::Boolean(value) => Ok(value),
            RawBsonRef::Null | RawBsonRef::Undefined => Ok(false),
            _ => Ok(self.integer()? != 0),
        }
    }

    fn text(&self) -> Result<&'a str, CommandError> {
        self.value.as_str().ok_or_else(|| self.wrong_type("string"))
    }

    fn document(&self) -> Result<&'a RawDocument, CommandError> {
        self.value
            .as_document()
            .ok_or_else(|| self.wrong_type("object"))
    }

    fn document_or_null(&self) -> Result<RawDocumentBuf, CommandError> {
        match self.value {
            RawBsonRef::Null => Ok(RawDocumentBuf::new()),
            _ => self.document().map(RawDocument::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(document: RawDocumentBuf) -> Result<SetConfig, CommandError> {
        SetConfig::parse(&document)
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut config = SetConfig::of_one("set_a", "db1:27018");
        config.settings.replica_set_id = Some(ObjectId::new());
        config.members.push(MemberConfig {
            priority: 2.5,
            ..MemberConfig::new(3, "db2:27018")
        });
        assert_eq!(parse(config.to_document()).unwrap(), config);
    }

    #[test]
    fn members_get_a_port_and_arbiters_no_priority() {
        let config = parse(rawdoc! {
            "_id": "s",
            "members": [{ "_id": 0, "host": "a" }, { "_id": 1, "host": "b:1", "arbiterOnly": true }],
        })
        .unwrap();
        assert_eq!(config.members[0].host, "a:27017");
        assert_eq!(config.members[1].priority, 0.0);
        assert!(!config.members[1].electable());
    }

    #[test]
    fn what_mongodb_refuses_is_refused() {
        let member = |id: i32, host: &str| rawdoc! { "_id": id, "host": host };
        let refused = [
            (rawdoc! { "_id": "s" }, 4),
            (rawdoc! { "_id": "s", "members": [] }, 93),
            (rawdoc! { "_id": "", "members": [member(0, "a:1")] }, 93),
            (
                rawdoc! { "_id": "s", "members": [member(0, "a:1"), member(0, "b:1")] },
                93,
            ),
            (
                rawdoc! { "_id": "s", "members": [member(0, "a:1"), member(1, "a:1")] },
                93,
            ),
            (
                rawdoc! { "_id": "s", "members": [member(0, "a:1"), member(1, "localhost:1")] },
                93,
            ),
            (rawdoc! { "_id": "s", "members": [member(300, "a:1")] }, 93),
            (rawdoc! { "_id": "s", "members": [member(0, "a:x")] }, 9),
            (
                rawdoc! { "_id": "s", "version": 0, "members": [member(0, "a:1")] },
                93,
            ),
            (
                rawdoc! { "_id": "s", "members": [member(0, "a:1")], "what": 1 },
                93,
            ),
            (rawdoc! { "_id": "s", "members": 1 }, 14),
            (rawdoc! { "_id": 7, "members": [member(0, "a:1")] }, 14),
            (
                rawdoc! { "_id": "s", "members": [{ "_id": 0, "host": "a", "votes": 0 }] },
                93,
            ),
            (
                rawdoc! { "_id": "s", "members": [{ "_id": 0, "host": "a", "priority": 0 }] },
                93,
            ),
        ];
        for (document, code) in refused {
            let error = parse(document.clone()).unwrap_err();
            assert_eq!(error.code.code(), code, "{document:?}: {error}");
        }
    }

    #[test]
    fn a_successor_has_a_higher_version_and_one_other_voter() {
        let old = SetConfig::of_one("s", "a:1");
        let mut new = old.clone();
        assert_eq!(
            old.check_successor(&new, false).unwrap_err().code.code(),
            103
        );
        assert!(old.check_successor(&new, true).is_ok());
        new.version = 2;
        new.members.push(MemberConfig::new(1, "b:1"));
        assert!(old.check_successor(&new, false).is_ok());
        new.members.push(MemberConfig::new(2, "c:1"));
        assert!(old.check_successor(&new, false).is_err());
        new.members.pop();
        new.members[0].id = 9;
        assert_eq!(
            old.check_successor(&new, false).unwrap_err().code.code(),
            103
        );
        new.name = "t".into();
        assert_eq!(
            old.check_successor(&new, true).unwrap_err().code.code(),
            103
        );
    }
}
