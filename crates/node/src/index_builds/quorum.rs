//! The commit quorum: which members must have loaded an index before it counts.
//!
//! It is no matter of correctness, since a member that comes later finishes by itself; it is about
//! where the index can be used at once. As in MongoDB all data-bearing voters are waited for where
//! the command names nobody, but only those that are up and follow the log: one that is away would
//! hold up the build for as long as it is.

use std::collections::HashSet;

use banyan_wire::{CommandError, ErrorCode};
use bson::raw::CStr;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::errors;
use crate::node::Node;
use crate::params::{self, Field};
use banyan_replication::set::config::{MemberConfig, SetConfig};

const FIELD: &CStr = cstr!("commitQuorum");
const MEMBERS_MAX: i64 = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quorum {
    /// All voters that are up.
    Present,
    /// All voters.
    VotingMembers,
    Majority,
    Members(usize),
}

/// Members whose word counts: they hold data, vote, and have indexes.
fn voters(config: &SetConfig) -> impl Iterator<Item = &MemberConfig> {
    let counts = |member: &&MemberConfig| member.is_writable_voter() && member.build_indexes;
    config.voters().filter(counts)
}

/// What a command asks for, as a build keeps it.
pub fn parse(node: &Node, field: Field<'_>) -> Result<RawDocumentBuf, CommandError> {
    let kept = read_field(field)?;
    check(node, field, &kept)?;
    Ok(kept)
}

/// What a command asks for, whether or not it can be had.
pub fn read_field(field: Field<'_>) -> Result<RawDocumentBuf, CommandError> {
    match field.value {
        RawBsonRef::String(text) => Ok(rawdoc! { FIELD: text }),
        _ => {
            let number = params::number(field.value)
                .ok_or_else(|| field.wrong_type("types '[long, int, decimal, double, string']"))?;
            if !(0..=MEMBERS_MAX).contains(&number) {
                return Err(CommandError::new(
                    ErrorCode::FailedToParse,
                    format!(
                        "commitQuorum has to be a non-negative number and not greater than \
                         {MEMBERS_MAX}"
                    ),
                ));
            }
            Ok(rawdoc! { FIELD: number })
        }
    }
}

/// Refuses what the set's members can never come to.
pub fn check(node: &Node, field: Field<'_>, kept: &RawDocument) -> Result<(), CommandError> {
    let Some(config) = node
        .replication
        .config()
        .filter(|_| node.replication.is_replica_set())
    else {
        return Err(CommandError::new(
            ErrorCode::BadValue,
            "Standalones can't specify commitQuorum",
        ));
    };
    let available = voters(&config).count();
    match read(kept) {
        Some(Quorum::Members(count)) if count > available => Err(CommandError::new(
            ErrorCode::UnsatisfiableCommitQuorum,
            "Not enough data-bearing nodes to satisfy commit quorum",
        )),
        Some(_) => Ok(()),
        None => Err(CommandError::new(
            ErrorCode::UnknownReplWriteConcern,
            format!(
                "No write concern mode named {} found in replica set configuration",
                errors::shown(field.value)
            ),
        )),
    }
}

/// The quorum of a command, as its reply tells it: on a set alone.
pub fn told(node: &Node, kept: Option<&RawDocument>) -> Option<RawBson> {
    let is_set = node.replication.is_replica_set();
    let given = kept.and_then(|kept| kept.get(FIELD).ok().flatten());
    let told = match given {
        Some(value) => match params::number(value) {
            Some(count) => RawBson::Int32(i32::try_from(count).unwrap_or(i32::MAX)),
            None => value.into(),
        },
        None => RawBson::String("votingMembers".to_owned()),
    };
    is_set.then_some(told)
}

fn read(options: &RawDocument) -> Option<Quorum> {
    match options.get(FIELD).ok().flatten() {
        None => Some(Quorum::Present),
        Some(RawBsonRef::String("majority")) => Some(Quorum::Majority),
        Some(RawBsonRef::String("votingMembers")) => Some(Quorum::VotingMembers),
        Some(value) => {
            let count = params::number(value)?;
            Some(Quorum::Members(usize::try_from(count).ok()?))
        }
    }
}

/// Whether enough members have loaded a build that this one, the primary, has loaded.
pub fn is_satisfied(node: &Node, options: &RawDocument, votes: &HashSet<String>) -> bool {
    let Some(config) = node.replication.config() else {
        return true;
    };
    let own = node.replication.own_host();
    let has_voted =
        |member: &MemberConfig| own.as_ref() == Some(&member.host) || votes.contains(&member.host);
    let count = voters(&config).filter(|member| has_voted(member)).count();
    let all = voters(&config).count();
    match read(options).unwrap_or(Quorum::Present) {
        Quorum::Members(wanted) => count >= wanted.min(all),
        Quorum::Majority => count > all / 2,
        Quorum::VotingMembers => count >= all,
        Quorum::Present => voters(&config).all(|member| {
            has_voted(member)
                || member.delay_seconds != 0
                || !node.replication.is_following(&member.host)
        }),
    }
}
