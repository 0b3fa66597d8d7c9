//! Write concern: what has to hold of a write before its reply leaves.
//!
//! A committed entry is in the logs of a majority, on disk, and applied here: that is what `w: 1`
//! and `w: "majority"` ask for, and no election takes it back. What goes beyond, more members or
//! certain ones, is waited for here, until they have applied it
//! ([`crate::set::progress`]). Arbiters hold no data and never count. `j` matters only to a
//! set of one that syncs by interval.
//!
//! The service waits once for a whole command, whatever the command was, so no command waits
//! itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_document::kind;
use banyan_wire::params::{self, Field};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use tokio_util::sync::CancellationToken;

use super::ReplicationCoordinator;
use super::config::{MemberConfig, SetConfig};
use crate::errors;
use crate::replica::Replica;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acknowledgement {
    Members(u32),
    Majority,
    /// One that the set's configuration defines under `settings.getLastErrorModes`.
    Mode(Box<str>),
    /// So many different values of each of these tags.
    Tags(Box<[(String, i64)]>),
}

/// Who said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    ClientSupplied,
    ImplicitDefault,
    CustomDefault,
    GetLastErrorDefaults,
    InternalWriteDefault,
}

impl Provenance {
    pub fn name(self) -> &'static str {
        match self {
            Provenance::ClientSupplied => "clientSupplied",
            Provenance::ImplicitDefault => "implicitDefault",
            Provenance::CustomDefault => "customDefault",
            Provenance::GetLastErrorDefaults => "getLastErrorDefaults",
            Provenance::InternalWriteDefault => "internalWriteDefault",
        }
    }

    pub fn from_name(name: &str) -> Option<Provenance> {
        [
            Provenance::ClientSupplied,
            Provenance::ImplicitDefault,
            Provenance::CustomDefault,
            Provenance::GetLastErrorDefaults,
            Provenance::InternalWriteDefault,
        ]
        .into_iter()
        .find(|known| known.name() == name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteConcern {
    pub w: Acknowledgement,
    /// The request named a `w` itself.
    pub explicit: bool,
    journal: Option<bool>,
    fsync: bool,
    timeout_ms: i32,
    pub provenance: Provenance,
}

impl Default for WriteConcern {
    fn default() -> Self {
        WriteConcern {
            w: Acknowledgement::Majority,
            explicit: false,
            journal: None,
            fsync: false,
            timeout_ms: 0,
            provenance: Provenance::ImplicitDefault,
        }
    }
}

/// A command that waits for its write concern.
pub struct Awaited<'a> {
    /// The log's index of its last write.
    pub index: Option<u64>,
    /// Something it wrote was not committed in time.
    pub is_late: bool,
    pub deadline: Option<Instant>,
    pub is_interrupted: &'a (dyn Fn() -> bool + Sync),
    pub client_gone: &'a CancellationToken,
}

/// More members than a set can have are asked for by mistake only.
const W_MAX: i64 = 50;

impl WriteConcern {
    /// The concern of a command. Whatever it leaves open is as `default` says.
    pub fn of(
        given: Option<&RawDocument>,
        default: &WriteConcern,
    ) -> Result<WriteConcern, CommandError> {
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return Ok(default.clone());
        };
        let mut concern = WriteConcern::parse(given)?;
        if !concern.explicit {
            concern.w = default.w.clone();
        }
        Ok(concern)
    }

    pub fn parse(document: &RawDocument) -> Result<WriteConcern, CommandError> {
        let mut parsed = WriteConcern {
            provenance: Provenance::ClientSupplied,
            ..WriteConcern::default()
        };
        for (name, value) in document.iter().flatten() {
            let name = name.as_str();
            let field = Field {
                command: "WriteConcernOptions",
                name,
                value,
            };
            match name {
                "w" => {
                    parsed.w = acknowledgement(value)?;
                    parsed.explicit = true;
                }
                "j" => parsed.journal = Some(field.bool()?),
                "fsync" => parsed.fsync = field.bool()?,
                "wtimeout" | "wtimeoutMS" => parsed.timeout_ms = timeout_ms(value)?,
                "provenance" => parsed.provenance = provenance(field)?,
                // What members and routers of old told each other.
                "getLastError" | "wElectionId" | "wOpTime" => {}
                _ => return Err(params::unknown_field("WriteConcernOptions", name)),
            }
        }
        if parsed.journal == Some(true) && parsed.fsync {
            return Err(failed_to_parse(
                "fsync and j options cannot be used together",
            ));
        }
        Ok(parsed)
    }

    /// What is asked for has to be on disk here, whatever the set's way of syncing.
    pub fn journal(&self) -> bool {
        self.journal == Some(true) || self.fsync
    }

    pub fn timeout(&self) -> Option<Duration> {
        let milliseconds = u64::try_from(self.timeout_ms).ok()?;
        (milliseconds > 0).then(|| Duration::from_millis(milliseconds))
    }

    /// How long a write may take to be committed before the client is told that it takes too
    /// long. A client that asks for one member does not ask for others to answer.
    pub fn commit_time_max(&self) -> Option<Duration> {
        match self.w {
            Acknowledgement::Members(0 | 1) => None,
            _ => self.timeout(),
        }
    }

    pub fn is_unacknowledged(&self) -> bool {
        self.w == Acknowledgement::Members(0)
    }

    /// As MongoDB shows it: all but where it comes from.
    pub fn to_document(&self) -> RawDocumentBuf {
        let w = match &self.w {
            Acknowledgement::Members(count) => {
                RawBson::Int32(i32::try_from(*count).unwrap_or(i32::MAX))
            }
            Acknowledgement::Majority => RawBson::String("majority".to_owned()),
            Acknowledgement::Mode(mode) => RawBson::String(mode.to_string()),
            Acknowledgement::Tags(tags) => {
                let mut out = RawDocumentBuf::new();
                for (tag, count) in tags {
                    if let Ok(tag) = bson::raw::CString::try_from(tag.as_str()) {
                        out.append(tag, i32::try_from(*count).unwrap_or(i32::MAX));
                    }
                }
                RawBson::Document(out)
            }
        };
        let mut out = rawdoc! { "w": w };
        if let Some(journal) = self.journal {
            out.append(cstr!("j"), journal);
        }
        if self.fsync {
            out.append(cstr!("fsync"), true);
        }
        out.append(cstr!("wtimeout"), self.timeout_ms);
        out
    }

    fn described(&self) -> RawDocumentBuf {
        let mut out = self.to_document();
        out.append(cstr!("provenance"), self.provenance.name());
        out
    }

    /// Refuses what a standalone could never fulfil. A set answers that beside the write's result.
    pub fn check_standalone(&self) -> Result<(), CommandError> {
        let text = match &self.w {
            Acknowledgement::Members(count) if *count > 1 => {
                "cannot use 'w' > 1 when a host is not replicated".to_owned()
            }
            Acknowledgement::Mode(mode) => format!(
                "cannot use non-majority 'w' mode \"{mode}\" when a host is not a member of a \
                 replica set"
            ),
            _ => return Ok(()),
        };
        Err(CommandError::new(ErrorCode::BadValue, text))
    }

    /// Refuses a mode that the set's configuration does not define.
    pub fn check_mode(&self, config: &SetConfig) -> Result<(), CommandError> {
        match self.goal(config) {
            Err(failure @ (Failure::UnknownMode(_) | Failure::UnknownTag(_))) => {
                let (code, text) = failure.describe();
                Err(CommandError::new(code, text))
            }
            _ => Ok(()),
        }
    }

    /// Waits until enough members have what the command wrote. The reply's `writeConcernError` if
    /// they don't within the time: the write itself has happened and stays.
    pub async fn wait(
        &self,
        replica: &Replica,
        replication: &Arc<ReplicationCoordinator>,
        awaited: Awaited<'_>,
    ) -> Option<RawDocumentBuf> {
        if awaited.is_late {
            return Some(self.failure(&Failure::TimedOut));
        }
        if matches!(
            self.w,
            Acknowledgement::Members(0 | 1) | Acknowledgement::Majority
        ) || !replication.is_replica_set()
        {
            return None;
        }
        self.wait_for_members(replica, replication, awaited)
            .await
            .err()
            .map(|failure| self.failure(&failure))
    }

    async fn wait_for_members(
        &self,
        replica: &Replica,
        replication: &Arc<ReplicationCoordinator>,
        awaited: Awaited<'_>,
    ) -> Result<(), Failure> {
        // A command that changed nothing asks for what it saw.
        let index = awaited
            .index
            .unwrap_or_else(|| replica.machine.applied_index());
        let wait_until = self.timeout().map(|timeout| Instant::now() + timeout);
        let watching = replication.watch_progress();
        replica.group.announce_commit();
        let (mut progress, mut topology) = (watching.changes(), replication.topology_watch());
        loop {
            progress.borrow_and_update();
            topology.borrow_and_update();
            let Some(config) = replication.config() else {
                return Err(Failure::Interrupted);
            };
            let goal = self.goal(&config)?;
            watching.follow_everybody();
            if goal.is_met(&config, |member| watching.has_applied(&member.host, index)) {
                return Ok(());
            }
            if !replica.is_primary() {
                return Err(Failure::Interrupted);
            }
            let now = Instant::now();
            if awaited.deadline.is_some_and(|deadline| deadline <= now) {
                return Err(Failure::MaxTime);
            }
            if wait_until.is_some_and(|until| until <= now) {
                return Err(Failure::TimedOut);
            }
            if (awaited.is_interrupted)() {
                return Err(Failure::Interrupted);
            }
            // Whether somebody ends the command is looked at once in a while.
            let ends = [wait_until, awaited.deadline, Some(now + INTERRUPT_CHECK)];
            let until = ends.into_iter().flatten().min().unwrap_or(now);
            tokio::select! {
                _ = progress.changed() => {}
                _ = topology.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
                () = awaited.client_gone.cancelled() => return Err(Failure::Interrupted),
            }
        }
    }

    fn goal(&self, config: &SetConfig) -> Result<Goal, Failure> {
        let holders = || config.members.iter().filter(|member| !member.arbiter_only);
        match &self.w {
            Acknowledgement::Members(count) => {
                let count = *count as usize;
                if count > holders().count() {
                    return Err(Failure::Unsatisfiable(
                        "Not enough data-bearing nodes".into(),
                    ));
                }
                Ok(Goal::Members(count))
            }
            Acknowledgement::Majority => Ok(Goal::Members(1)),
            Acknowledgement::Mode(mode) => {
                let definition = config.settings.last_error_modes.get_document(&**mode);
                let Ok(definition) = definition else {
                    return Err(Failure::UnknownMode(format!(
                        "No write concern mode named '{mode}' found in replica set configuration"
                    )));
                };
                let tags = definition.iter().flatten();
                let tags = tags.map(|(tag, count)| {
                    let count = params::number(count).unwrap_or(0);
                    (tag.as_str().to_owned(), count)
                });
                Goal::of_tags(config, tags.collect(), || format!("\"{mode}\""))
            }
            Acknowledgement::Tags(tags) => {
                let known = |tag: &str| holders().any(|member| value_of(member, tag).is_some());
                if let Some((tag, _)) = tags.iter().find(|(tag, _)| !known(tag)) {
                    return Err(Failure::UnknownTag(format!(
                        "No replica set tag key {tag} in config"
                    )));
                }
                let shown = || {
                    let parts = tags
                        .iter()
                        .map(|(tag, count)| format!("(\"{tag}\", {count})"));
                    format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
                };
                Goal::of_tags(config, tags.to_vec(), shown)
            }
        }
    }

    fn failure(&self, failure: &Failure) -> RawDocumentBuf {
        let (code, text) = failure.describe();
        let mut info = RawDocumentBuf::new();
        if matches!(failure, Failure::TimedOut) {
            info.append(cstr!("wtimeout"), true);
        }
        info.append(cstr!("writeConcern"), self.described());
        rawdoc! {
            "code": code.code(),
            "codeName": &*code.name(),
            "errmsg": text,
            "errInfo": info,
        }
    }
}

const INTERRUPT_CHECK: Duration = Duration::from_secs(1);

/// Why a write concern was not fulfilled.
#[derive(Debug)]
enum Failure {
    TimedOut,
    MaxTime,
    Interrupted,
    Unsatisfiable(String),
    UnknownMode(String),
    UnknownTag(String),
}

impl Failure {
    fn describe(&self) -> (ErrorCode, &str) {
        match self {
            Failure::TimedOut => (
                ErrorCode::WriteConcernFailed,
                "waiting for replication timed out",
            ),
            Failure::MaxTime => (ErrorCode::MaxTimeMSExpired, "operation exceeded time limit"),
            Failure::Interrupted => (
                ErrorCode::InterruptedDueToReplStateChange,
                "operation was interrupted",
            ),
            Failure::Unsatisfiable(text) => (ErrorCode::UnsatisfiableWriteConcern, text),
            Failure::UnknownMode(text) => (ErrorCode::UnknownReplWriteConcern, text),
            Failure::UnknownTag(text) => (ErrorCode::NoSuchKey, text),
        }
    }
}

/// What a write concern comes to in one configuration of the set.
#[derive(Debug, PartialEq, Eq)]
enum Goal {
    Members(usize),
    /// So many different values of each tag.
    Tags(Vec<(String, usize)>),
}

impl Goal {
    fn of_tags(
        config: &SetConfig,
        tags: Vec<(String, i64)>,
        shown: impl Fn() -> String,
    ) -> Result<Goal, Failure> {
        let tags = tags
            .into_iter()
            .map(|(tag, count)| (tag, usize::try_from(count).unwrap_or(0)));
        let goal = Goal::Tags(tags.collect());
        if goal.is_met(config, |_| true) {
            return Ok(goal);
        }
        Err(Failure::Unsatisfiable(format!(
            "Not enough nodes match write concern mode \"{}\"",
            shown()
        )))
    }

    fn is_met(&self, config: &SetConfig, has: impl Fn(&MemberConfig) -> bool) -> bool {
        let holders = || {
            let holders = config.members.iter().filter(|member| !member.arbiter_only);
            holders.filter(|member| has(member))
        };
        match self {
            Goal::Members(count) => holders().count() >= *count,
            Goal::Tags(tags) => tags.iter().all(|(tag, count)| {
                let mut values: Vec<_> = holders().filter_map(|m| value_of(m, tag)).collect();
                values.sort_unstable();
                values.dedup();
                values.len() >= *count
            }),
        }
    }
}

fn value_of<'a>(member: &'a MemberConfig, tag: &str) -> Option<&'a str> {
    member.tags.get_str(tag).ok()
}

fn acknowledgement(value: RawBsonRef<'_>) -> Result<Acknowledgement, CommandError> {
    match value {
        RawBsonRef::String("majority") => Ok(Acknowledgement::Majority),
        RawBsonRef::String(mode) => Ok(Acknowledgement::Mode(mode.into())),
        RawBsonRef::Null | RawBsonRef::Undefined => Ok(Acknowledgement::Mode("".into())),
        RawBsonRef::Document(tags) => tag_counts(tags),
        value => match params::number(value) {
            Some(count @ 0..=W_MAX) => Ok(Acknowledgement::Members(count as u32)),
            Some(count) => Err(failed_to_parse(format!(
                "w has to be a non-negative number and not greater than 50; found: {count}"
            ))),
            None => Err(failed_to_parse(format!(
                "w has to be a number, string, or object; found: {}",
                kind::name(&value)
            ))),
        },
    }
}

fn tag_counts(tags: &RawDocument) -> Result<Acknowledgement, CommandError> {
    let mut counts = Vec::new();
    for (tag, value) in tags.iter().flatten() {
        let Some(count) = params::number(value) else {
            return Err(failed_to_parse(format!(
                "tags must be a single level document with only number values; found: {}: {}",
                tag.as_str(),
                errors::shown(value)
            )));
        };
        counts.push((tag.as_str().to_owned(), count));
    }
    if counts.is_empty() {
        return Err(failed_to_parse("tagged write concern requires tags"));
    }
    Ok(Acknowledgement::Tags(counts.into()))
}

/// What is not a number counts as none, as it always has.
fn timeout_ms(value: RawBsonRef<'_>) -> Result<i32, CommandError> {
    let milliseconds = params::number(value).unwrap_or(0);
    i32::try_from(milliseconds).map_err(|_| failed_to_parse("wtimeout must be a 32-bit integer"))
}

fn provenance(field: Field<'_>) -> Result<Provenance, CommandError> {
    let name = field.str()?;
    Provenance::from_name(name).ok_or_else(|| {
        CommandError::new(
            ErrorCode::BadValue,
            format!(
                "Enumeration value '{name}' for field 'WriteConcernOptions.provenance' is not a \
                 valid value."
            ),
        )
    })
}

fn failed_to_parse(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::FailedToParse, text)
}

/// A reply with the concern's failure beside the result, before `ok`.
pub fn with_failure(reply: &RawDocument, failure: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    let mut failure = Some(failure);
    for (name, value) in reply.iter().flatten() {
        if name.as_str() == "ok"
            && let Some(failure) = failure.take()
        {
            out.append(cstr!("writeConcernError"), failure);
        }
        out.append(name, value);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(document: RawDocumentBuf) -> Result<WriteConcern, CommandError> {
        WriteConcern::parse(&document)
    }

    #[test]
    fn what_is_left_open_is_the_default() {
        let default = WriteConcern {
            w: Acknowledgement::Members(2),
            timeout_ms: 7,
            provenance: Provenance::CustomDefault,
            ..WriteConcern::default()
        };
        assert_eq!(WriteConcern::of(None, &default).unwrap(), default);
        let empty = RawDocumentBuf::new();
        assert_eq!(WriteConcern::of(Some(&empty), &default).unwrap(), default);
        let concern = WriteConcern::of(Some(&rawdoc! { "j": true }), &default).unwrap();
        assert_eq!(concern.w, Acknowledgement::Members(2));
        assert!(concern.journal() && concern.timeout().is_none());
        let concern = WriteConcern::of(Some(&rawdoc! { "w": 1 }), &default).unwrap();
        assert_eq!(concern.w, Acknowledgement::Members(1));
        assert_eq!(concern.provenance, Provenance::ClientSupplied);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let refused = [
            (rawdoc! { "w": -1 }, 9),
            (rawdoc! { "w": 51 }, 9),
            (rawdoc! { "w": true }, 9),
            (rawdoc! { "w": {} }, 9),
            (rawdoc! { "w": { "dc": "x" } }, 9),
            (rawdoc! { "j": true, "fsync": true }, 9),
            (rawdoc! { "w": 1, "wtimeout": 1_i64 << 40 }, 9),
            (rawdoc! { "w": 1, "provenance": "hearsay" }, 2),
            (rawdoc! { "w": 1, "j": "x" }, 14),
            (rawdoc! { "w": 1, "x": 1 }, 40415),
        ];
        for (document, code) in refused {
            let error = parse(document.clone()).unwrap_err();
            assert_eq!(error.code.code(), code, "{document:?}: {error}");
        }
        assert_eq!(
            parse(rawdoc! { "w": 1.5, "wtimeout": "x" }).unwrap().w,
            Acknowledgement::Members(1)
        );
        assert_eq!(
            parse(rawdoc! { "w": null }).unwrap().w,
            Acknowledgement::Mode("".into())
        );
    }

    fn set() -> SetConfig {
        let member = |id: i32, dc: &str| rawdoc! { "_id": id, "host": format!("h{id}:1"), "tags": { "dc": dc } };
        SetConfig::parse(&rawdoc! {
            "_id": "s",
            "members": [
                member(0, "east"),
                member(1, "east"),
                member(2, "west"),
                { "_id": 3, "host": "a:1", "arbiterOnly": true },
            ],
            "settings": { "getLastErrorModes": { "both": { "dc": 2 }, "three": { "dc": 3 } } },
        })
        .unwrap()
    }

    #[test]
    fn arbiters_do_not_count_and_tags_count_by_value() {
        let config = set();
        let goal = |document: RawDocumentBuf| parse(document).unwrap().goal(&config);
        let met = |goal: &Goal, hosts: &[&str]| {
            goal.is_met(&config, |member| hosts.contains(&&*member.host))
        };
        let two = goal(rawdoc! { "w": 2 }).unwrap();
        assert!(!met(&two, &["h0:1", "a:1"]));
        assert!(met(&two, &["h0:1", "h2:1"]));
        assert!(matches!(
            goal(rawdoc! { "w": 4 }),
            Err(Failure::Unsatisfiable(_))
        ));
        let both = goal(rawdoc! { "w": "both" }).unwrap();
        assert!(!met(&both, &["h0:1", "h1:1"]));
        assert!(met(&both, &["h0:1", "h2:1"]));
        assert_eq!(goal(rawdoc! { "w": { "dc": 2 } }).unwrap(), both);
        for (document, code) in [
            (rawdoc! { "w": "three" }, 100),
            (rawdoc! { "w": "none" }, 79),
            (rawdoc! { "w": { "rack": 1 } }, 4),
        ] {
            let concern = parse(document).unwrap();
            let failure = concern.goal(&config).unwrap_err();
            let reply = concern.failure(&failure);
            assert_eq!(reply.get_i32("code").unwrap(), code);
            let info = reply.get_document("errInfo").unwrap();
            let shown = info.get_document("writeConcern").unwrap();
            assert_eq!(shown.get_str("provenance").unwrap(), "clientSupplied");
        }
    }

    #[test]
    fn a_failure_stands_before_ok() {
        let reply = with_failure(&rawdoc! { "n": 1, "ok": 1.0 }, rawdoc! { "code": 64 });
        assert_eq!(
            reply,
            rawdoc! { "n": 1, "writeConcernError": { "code": 64 }, "ok": 1.0 }
        );
    }
}
