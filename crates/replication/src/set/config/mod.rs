//! The set's configuration: what `local.system.replset` holds and `rs.conf()` shows.
//!
//! It's parsed once, checked by MongoDB's rules and error codes, and written out again with every
//! default filled in. Which members vote in Raft follows from it (see `reconcile`).

mod field;
mod member;
mod settings;
mod successor;
#[cfg(test)]
mod tests;

use banyan_wire::CommandError;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use field::{fields, invalid, missing};

pub(in crate::set) use field::small;

pub use member::{HOST_BYTES_MAX, MemberConfig, host_name, is_local_host};
pub use settings::{ELECTION_TIMEOUT_MS, HEARTBEAT_MS, Settings};

const OF: &str = "ReplSetConfig";

pub const MEMBERS_MAX: usize = 50;
pub const VOTERS_MAX: usize = 7;

#[derive(Debug, Clone, PartialEq)]
pub struct SetConfig {
    pub name: String,
    pub version: i64,
    pub term: i64,
    pub config_server: bool,
    pub members: Vec<MemberConfig>,
    /// Shown as it was given. Here an acknowledged write is journaled by a majority, whatever it
    /// says.
    pub majority_journals: bool,
    pub settings: Settings,
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
            majority_journals: true,
            settings: Settings::default(),
        }
    }

    /// A configuration that is well formed and makes sense.
    pub fn parse(document: &RawDocument) -> Result<SetConfig, CommandError> {
        let config = Self::read(document)?;
        config.check()?;
        Ok(config)
    }

    /// A configuration that is well formed. One without a version is the first one.
    pub fn read(document: &RawDocument) -> Result<SetConfig, CommandError> {
        let mut config = SetConfig::of_one("", "");
        config.members.clear();
        config.term = -1;
        let (mut named, mut listed) = (false, false);
        for field in fields(OF, document) {
            let field = field?;
            match field.name {
                "_id" => {
                    config.name = field.text()?.to_owned();
                    named = true;
                }
                "version" => {
                    config.version = field.positive(field.exact()?)?;
                    if config.version > i64::from(i32::MAX) {
                        return Err(field.out_of_range("< 2147483648", config.version));
                    }
                }
                "term" => config.term = field.at_least(-1, field.exact()?)?,
                "configsvr" => match field.value {
                    RawBsonRef::Boolean(value) => config.config_server = value,
                    other => {
                        return Err(invalid(format!(
                            "Field 'configsvr' should be a boolean value, but found: {}",
                            banyan_document::kind::name(&other)
                        )));
                    }
                },
                "members" => {
                    config.members = read_members(field.array()?)?;
                    listed = true;
                }
                "settings" | "protocolVersion" | "writeConcernMajorityJournalDefault"
                    if field.is_null() => {}
                "settings" => config.settings = Settings::parse(field.document()?)?,
                "protocolVersion" => {
                    field.at_most(1, field.at_least(1, field.integer()?)?)?;
                }
                "writeConcernMajorityJournalDefault" => config.majority_journals = field.flag()?,
                _ => return Err(field.unknown()),
            }
        }
        for (name, found) in [("_id", named), ("members", listed)] {
            if !found {
                return Err(missing(OF, name));
            }
        }
        if config.name.is_empty() {
            return Err(invalid(
                "Replica set configuration must have non-empty _id field",
            ));
        }
        for member in &config.members {
            member.check_tags()?;
        }
        config.settings.check_modes(&config.members)?;
        Ok(config)
    }

    /// Whether it makes sense as a whole.
    pub fn check(&self) -> Result<(), CommandError> {
        if self.members.is_empty() || self.members.len() > MEMBERS_MAX {
            return Err(invalid(format!(
                "Replica set configuration contains {} members, but must have at least 1 and no \
                 more than  {MEMBERS_MAX}",
                self.members.len()
            )));
        }
        self.check_distinct()?;
        let arbiter = self
            .members
            .iter()
            .find(|member| member.arbiter_only && member.priority > 0.0);
        if let Some(arbiter) = arbiter {
            return Err(invalid(format!(
                "Member {} is an arbiter but has priority {}. Arbiter priority must be 0.",
                arbiter.host, arbiter.priority
            )));
        }
        let voters = self.voters().count();
        if voters == 0 || voters > VOTERS_MAX {
            return Err(invalid(format!(
                "Replica set configuration contains {voters} voting members, but must be at \
                 least 1 and no more than {VOTERS_MAX}"
            )));
        }
        if !self.members.iter().any(MemberConfig::electable) {
            return Err(invalid(
                "Replica set configuration must contain at least one non-arbiter member with \
                 priority > 0",
            ));
        }
        Ok(())
    }

    fn check_distinct(&self) -> Result<(), CommandError> {
        for (at, member) in self.members.iter().enumerate() {
            for (after, other) in self.members.iter().enumerate().skip(at + 1) {
                if member.id == other.id {
                    return Err(invalid(format!(
                        "Found two member configurations with same _id field, members.{at}._id \
                         == members.{after}._id == MemberId({})",
                        member.id
                    )));
                }
                if member.host == other.host {
                    return Err(invalid(format!(
                        "Found two member configurations with same host field, members.{at}.host \
                         == members.{after}.host == {}",
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

    pub fn voters(&self) -> impl Iterator<Item = &MemberConfig> {
        self.members.iter().filter(|member| member.votes)
    }

    pub fn majority(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    pub fn by_host(&self, host: &str) -> Option<&MemberConfig> {
        self.members.iter().find(|member| member.host == host)
    }

    /// It has that member, be it under another name.
    pub fn knows(&self, member: &MemberConfig) -> bool {
        let same = |known: &MemberConfig| known.id == member.id || known.host == member.host;
        self.members.iter().any(same)
    }

    /// As messages name a configuration.
    pub fn version_and_term(&self) -> String {
        format!("{{version: {}, term: {}}}", self.version, self.term)
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
        out.append(
            cstr!("writeConcernMajorityJournalDefault"),
            self.majority_journals,
        );
        out.append(cstr!("settings"), self.settings.to_document());
        out
    }
}

fn read_members(array: &bson::RawArray) -> Result<Vec<MemberConfig>, CommandError> {
    let mut members = Vec::new();
    for (at, item) in array.into_iter().enumerate() {
        let value = item.map_err(|error| invalid(error.to_string()))?;
        let name = format!("members.{at}");
        let field = field::Field {
            of: OF,
            name: &name,
            value,
        };
        members.push(MemberConfig::parse(field.document()?)?);
    }
    Ok(members)
}
