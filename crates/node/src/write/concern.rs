//! Write concern: what has to hold of a write before its reply leaves.
//!
//! A committed entry is on a majority and applied here, which is what `w: 1` and `w: "majority"`
//! ask for. What goes beyond is waited for in this module: `w: N` with N above a majority. `j`
//! matters only to a set of one that syncs by interval.

use std::time::{Duration, Instant};

use banyan_consensus::Position;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::node::Node;
use crate::params::{self, Field};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledgement<'a> {
    Members(usize),
    Majority,
    /// One that the set's configuration would have to define.
    Mode(&'a str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteConcern<'a> {
    pub w: Acknowledgement<'a>,
    pub journal: bool,
    pub timeout: Option<Duration>,
}

impl Default for WriteConcern<'_> {
    fn default() -> Self {
        WriteConcern {
            w: Acknowledgement::Majority,
            journal: false,
            timeout: None,
        }
    }
}

/// More members than a set can have are asked for by mistake only.
const W_MAX: u64 = 50;

impl<'a> WriteConcern<'a> {
    pub fn parse(concern: Option<&'a RawDocument>) -> Result<WriteConcern<'a>, CommandError> {
        let mut parsed = WriteConcern::default();
        for (name, value) in concern.into_iter().flat_map(RawDocument::iter).flatten() {
            let name = name.as_str();
            let field = Field {
                command: "writeConcern",
                name,
                value,
            };
            match (name, value) {
                ("w", RawBsonRef::String("majority")) => parsed.w = Acknowledgement::Majority,
                ("w", RawBsonRef::String(mode)) => parsed.w = Acknowledgement::Mode(mode),
                ("w", _) => parsed.w = Acknowledgement::Members(members(field)?),
                ("j" | "fsync", _) => parsed.journal |= field.bool()?,
                ("wtimeout" | "wtimeoutMS", _) => {
                    let milliseconds = u64::try_from(field.i64()?).unwrap_or(0);
                    parsed.timeout =
                        (milliseconds > 0).then(|| Duration::from_millis(milliseconds));
                }
                ("provenance" | "getLastError", _) => {}
                (name, _) => return Err(params::unknown_field("WriteConcernOptions", name)),
            }
        }
        Ok(parsed)
    }

    /// Refuses what no set, or not this one, could ever fulfil.
    pub fn check(&self, node: &Node) -> Result<(), CommandError> {
        match self.w {
            Acknowledgement::Members(count) if count > 1 && !node.replication.is_replica_set() => {
                Err(CommandError::new(
                    ErrorCode::BadValue,
                    "cannot use 'w' > 1 when a host is not replicated",
                ))
            }
            Acknowledgement::Mode(mode) if !node.replication.is_replica_set() => {
                Err(CommandError::new(
                    ErrorCode::BadValue,
                    format!(
                        "cannot use non-majority 'w' mode \"{mode}\" when a host is not a member \
                         of a replica set"
                    ),
                ))
            }
            Acknowledgement::Mode(mode) => Err(CommandError::new(
                ErrorCode::UnknownReplWriteConcern,
                format!("No write concern mode named '{mode}' found in replica set configuration"),
            )),
            _ => Ok(()),
        }
    }

    /// Waits until enough members have the entry. The reply's `writeConcernError` if they don't
    /// within the time: the write itself has happened and stays.
    pub async fn wait(&self, node: &Node, at: Position) -> Option<RawDocumentBuf> {
        let Acknowledgement::Members(count) = self.w else {
            return None;
        };
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let status = node.group.status();
            let own = status.id;
            let has =
                |peer: &banyan_consensus::PeerProgress| peer.id == own || peer.matched >= at.index;
            if count <= 1 || status.peers.iter().filter(|peer| has(peer)).count() >= count {
                return None;
            }
            if status.peers.len() < count {
                return Some(rawdoc! {
                    "code": ErrorCode::UnsatisfiableWriteConcern.code(),
                    "codeName": "UnsatisfiableWriteConcern",
                    "errmsg": "Not enough data-bearing nodes",
                });
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Some(timed_out());
            }
            // Followers report within a heartbeat.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub fn timed_out() -> RawDocumentBuf {
    rawdoc! {
        "code": ErrorCode::WriteConcernFailed.code(),
        "codeName": "WriteConcernFailed",
        "errmsg": "waiting for replication timed out",
        "errInfo": { "wtimeout": true },
    }
}

fn members(field: Field<'_>) -> Result<usize, CommandError> {
    let count = field.i64()?;
    match u64::try_from(count) {
        Ok(count) if count <= W_MAX => Ok(count as usize),
        _ => Err(CommandError::new(
            ErrorCode::FailedToParse,
            format!("w has to be a non-negative number and not greater than 50; found: {count}"),
        )),
    }
}
