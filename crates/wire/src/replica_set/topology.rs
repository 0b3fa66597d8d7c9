//! What is known about a set: its members, as they last described themselves.

use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument};

use crate::client::Pool;
use crate::read_preference::ReadPreference;
use crate::selection::{Claim, Described, Kind, Rules, select, strongest};

/// A new measurement counts for this much of the average, as drivers have it.
const NEWEST_SHARE: f64 = 0.2;

/// One member's answer to `hello`.
#[derive(Clone)]
pub(super) struct Greeting {
    pub described: Described,
    claim: Claim,
    /// The members, as this one knows them; empty for a server that is alone.
    hosts: Vec<String>,
    /// By which it can be asked to answer once something has changed.
    pub version: Option<(ObjectId, i64)>,
}

impl Greeting {
    /// Why the member is not one of the set named `name`, or what it says.
    pub fn read(reply: &RawDocument, name: Option<&str>) -> Result<Greeting, String> {
        if let Some(expected) = name {
            let set = reply.get_str("setName").unwrap_or_default();
            if set.is_empty() {
                return Err(format!("is not a member of a set, not of {expected}"));
            }
            if set != expected {
                return Err(format!("is {set}, not of {expected}"));
            }
        }
        let flag = |field| reply.get_bool(field).unwrap_or(false);
        let kind = if flag("isWritablePrimary") || flag("ismaster") {
            Kind::Primary
        } else if flag("secondary") {
            Kind::Secondary
        } else {
            Kind::Other
        };
        let hosts = ["hosts", "passives"]
            .into_iter()
            .filter_map(|field| reply.get_array(field).ok())
            .flatten()
            .filter_map(|host| Some(host.ok()?.as_str()?.to_owned()))
            .collect();
        let tags = reply.get_document("tags").ok();
        let tags = tags.into_iter().flat_map(|tags| tags.iter().flatten());
        let tags = tags
            .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.as_str()?.into())));
        let last_write = reply.get_document("lastWrite").ok();
        let last_write = last_write.and_then(|write| write.get_datetime("lastWriteDate").ok());
        let election = reply.get_object_id("electionId").ok();
        Ok(Greeting {
            described: Described {
                kind,
                tags: tags.collect(),
                last_write_ms: last_write.map(bson::DateTime::timestamp_millis),
                described: Instant::now(),
                round_trip: None,
            },
            claim: (
                election.map(|id| id.bytes()),
                reply.get_i32("setVersion").map_or(0, i64::from),
            ),
            hosts,
            version: version(reply),
        })
    }
}

fn version(reply: &RawDocument) -> Option<(ObjectId, i64)> {
    let version = reply.get_document("topologyVersion").ok()?;
    match version.get("counter").ok().flatten() {
        Some(RawBsonRef::Int64(counter)) => {
            Some((version.get_object_id("processId").ok()?, counter))
        }
        _ => None,
    }
}

#[derive(Clone)]
struct Member {
    pool: Pool,
    described: Described,
    claim: Claim,
}

/// Never changed: a new one takes its place.
#[derive(Clone, Default)]
pub(super) struct Topology {
    members: Vec<Member>,
    /// All members as the set names them, answering or not.
    pub hosts: Vec<String>,
    /// Counts the changes, so that a task that waited for another one's look can use it.
    pub generation: u64,
}

impl Topology {
    pub fn primary(&self) -> Option<&Pool> {
        self.members
            .iter()
            .find(|member| member.described.kind == Kind::Primary)
            .map(|member| &member.pool)
    }

    /// One of the members that suit; they take turns.
    pub fn choose(&self, preference: &ReadPreference, turn: usize) -> Option<&Pool> {
        if *preference == ReadPreference::default() {
            return self.primary();
        }
        let described: Vec<Described> = self
            .members
            .iter()
            .map(|member| member.described.clone())
            .collect();
        let suitable = select(&described, preference, Rules::default());
        let index = suitable.get(turn % suitable.len().max(1))?;
        Some(&self.members[*index].pool)
    }

    /// When the member last described itself.
    pub fn heard_at(&self, pool: &Pool) -> Option<Instant> {
        let member = self.members.iter().find(|member| member.pool.is(pool))?;
        Some(member.described.described)
    }

    /// The topology after a member has answered.
    pub fn heard(&self, pool: &Pool, greeting: Greeting, took: Option<Duration>) -> Topology {
        let mut next = self.clone();
        next.generation += 1;
        let before = next.members.iter().position(|member| member.pool.is(pool));
        let mut described = greeting.described;
        let known = before.and_then(|index| next.members[index].described.round_trip);
        described.round_trip = match (known, took) {
            (Some(known), Some(took)) => Some(averaged(known, took)),
            (known, took) => took.or(known),
        };
        let kind = described.kind;
        let member = Member {
            pool: pool.clone(),
            described,
            claim: greeting.claim,
        };
        match before {
            Some(index) => next.members[index] = member,
            None => next.members.push(member),
        }
        let names_members = kind == Kind::Primary || next.hosts.is_empty();
        if names_members && !greeting.hosts.is_empty() {
            next.hosts = greeting.hosts;
        }
        next.settle_claims();
        if kind == Kind::Primary && !next.hosts.is_empty() {
            // A member that the primary does not name is not one any more.
            let hosts = next.hosts.clone();
            next.members.retain(|member| {
                let address = member.pool.address();
                member.pool.is(pool) || hosts.iter().any(|host| host == address)
            });
        }
        next
    }

    /// The topology after a member has not answered, or has refused what it was chosen for.
    pub fn lost(&self, pool: &Pool, kind: Kind) -> Topology {
        let mut next = self.clone();
        next.generation += 1;
        for member in &mut next.members {
            if member.pool.is(pool) {
                member.described.kind = kind;
            }
        }
        next
    }

    /// At most one primary: the one elected last.
    fn settle_claims(&mut self) {
        let claims = self.members.iter().enumerate();
        let claims =
            claims.filter_map(|(n, m)| (m.described.kind == Kind::Primary).then_some((n, m.claim)));
        let strongest = strongest(claims);
        for (index, member) in self.members.iter_mut().enumerate() {
            if member.described.kind == Kind::Primary && Some(index) != strongest {
                member.described.kind = Kind::Other;
            }
        }
    }
}

fn averaged(known: Duration, took: Duration) -> Duration {
    known.mul_f64(1.0 - NEWEST_SHARE) + took.mul_f64(NEWEST_SHARE)
}
