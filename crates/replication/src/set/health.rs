//! What members say about themselves, and what is known of each.

use std::time::Instant;

use banyan_consensus::PeerId;
use banyan_wire::params;
use bson::{DateTime, RawDocument, RawDocumentBuf, Timestamp, cstr, rawdoc};

use super::config::MemberConfig;
use super::op_time::OpTime;
use super::state::MemberState;

/// What a member says about itself.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    pub set_name: String,
    pub peer: PeerId,
    pub state: MemberState,
    pub term: i64,
    pub applied: OpTime,
    pub applied_index: u64,
    pub commit_index: u64,
    /// Where its log ends.
    pub last_index: u64,
    pub last_term: u64,
    pub wall: DateTime,
    pub config_version: i64,
    pub config_term: i64,
    pub replica_set_id: Option<bson::oid::ObjectId>,
    pub has_data: bool,
    /// It keeps no data, or no indexes: it cannot become a member that does.
    pub keeps_no_data: bool,
    pub keeps_no_indexes: bool,
    pub sync_source: String,
    pub election: Option<(Timestamp, DateTime)>,
    /// It would campaign: its part allows it, and it's not told to stay away.
    pub may_lead: bool,
    /// Why it is in its state.
    pub info: String,
    /// Its configuration has the host that asked, or its group the member.
    pub lists_asker: bool,
}

/// What is known about another member.
#[derive(Debug, Clone, Default)]
pub struct Health {
    pub asked: Option<DateTime>,
    /// It asked us.
    pub heard_from: Option<DateTime>,
    pub answered: Option<Instant>,
    pub ping_ms: i64,
    pub up_since: Option<Instant>,
    pub last: Option<Heartbeat>,
    pub problem: String,
}

impl Health {
    pub fn is_up(&self) -> bool {
        self.up_since.is_some()
    }
}

impl Heartbeat {
    pub fn to_reply(&self) -> RawDocumentBuf {
        let mut out = rawdoc! {
            "set": self.set_name.as_str(),
            "state": self.state.number(),
            "v": self.config_version,
            "configTerm": self.config_term,
            "term": self.term,
            "opTime": self.applied.to_document(),
            "durableOpTime": self.applied.to_document(),
            "wallTime": self.wall,
            "syncingTo": self.sync_source.as_str(),
            "peer": self.peer as i64,
            "appliedIndex": self.applied_index as i64,
            "commitIndex": self.commit_index as i64,
            "lastIndex": self.last_index as i64,
            "lastTerm": self.last_term as i64,
            "hasData": self.has_data,
            "keepsNoData": self.keeps_no_data,
            "keepsNoIndexes": self.keeps_no_indexes,
            "listsAsker": self.lists_asker,
            "mayLead": self.may_lead,
        };
        if !self.info.is_empty() {
            out.append(cstr!("info"), self.info.as_str());
        }
        if let Some(id) = self.replica_set_id {
            out.append(cstr!("replicaSetId"), id);
        }
        if let Some((time, date)) = self.election {
            out.append(cstr!("electionTime"), time);
            out.append(cstr!("electionDate"), date);
        }
        out.append(cstr!("ok"), 1.0);
        out
    }

    /// None if the reply is not one of a member like this one.
    pub fn from_reply(reply: &RawDocument) -> Option<Heartbeat> {
        let integer = |name: &str| reply.get(name).ok().flatten().and_then(params::number);
        let natural = |name: &str| u64::try_from(integer(name)?).ok();
        let election_time = reply.get_timestamp("electionTime").ok();
        let election_date = reply.get_datetime("electionDate").ok();
        Some(Heartbeat {
            set_name: reply.get_str("set").ok()?.to_owned(),
            peer: natural("peer")?,
            state: MemberState::from_number(i32::try_from(integer("state")?).ok()?),
            term: integer("term")?,
            applied: OpTime::from_document(reply.get_document("opTime").ok()?),
            applied_index: natural("appliedIndex")?,
            commit_index: natural("commitIndex")?,
            last_index: natural("lastIndex")?,
            last_term: natural("lastTerm")?,
            wall: reply.get_datetime("wallTime").ok()?,
            config_version: integer("v")?,
            config_term: integer("configTerm").unwrap_or(-1),
            replica_set_id: reply.get_object_id("replicaSetId").ok(),
            has_data: reply.get_bool("hasData").unwrap_or(false),
            keeps_no_data: reply.get_bool("keepsNoData").unwrap_or(false),
            keeps_no_indexes: reply.get_bool("keepsNoIndexes").unwrap_or(false),
            sync_source: reply.get_str("syncingTo").unwrap_or_default().to_owned(),
            election: election_time.zip(election_date),
            may_lead: reply.get_bool("mayLead").unwrap_or(true),
            info: reply.get_str("info").unwrap_or_default().to_owned(),
            lists_asker: reply.get_bool("listsAsker").unwrap_or(true),
        })
    }

    /// Why it cannot become this member of the configuration, if that is so.
    pub fn unfit_for(&self, member: &MemberConfig) -> Option<&'static str> {
        if self.keeps_no_data && !member.arbiter_only {
            Some("was an arbiter and holds no data")
        } else if self.keeps_no_indexes && member.build_indexes {
            Some("was a member without indexes")
        } else {
            None
        }
    }
}
