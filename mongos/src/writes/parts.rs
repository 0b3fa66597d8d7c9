//! What is left of a statement that has run on some of its shards when chunks have moved.
//!
//! A shard runs a statement for the documents that it owns as of the version in the request, and
//! nothing moves away from it while it does. So what a shard has run it for follows from the route
//! that it was sent with. When another one refuses that route, the newer one may name a shard that
//! has got a chunk whose documents have had their turn where they were, or have missed it: each
//! shard is asked to run the statement for the ranges that it owns now and that no shard has run it
//! for.

use std::sync::Arc;

use banyan_sharding::Coverage;
use bson::raw::{CString, cstr};
use bson::{RawDocumentBuf, rawdoc};

use crate::catalog::Route;

/// A shard that has run a statement, and by which route.
pub struct Ran {
    pub shard: Arc<str>,
    pub route: Arc<Route>,
}

/// A shard that has to run a statement, and for what.
pub struct Part {
    pub shard: Arc<str>,
    /// `None`: everything that it owns.
    pub limits: Option<Limits>,
}

/// Of what a shard owns, these ranges only or all but these, whichever is told more quickly.
#[derive(Debug, PartialEq, Eq)]
pub enum Limits {
    Only(Coverage),
    Except(Coverage),
}

impl Limits {
    /// As the version of a request that is sent to the shard.
    pub fn versions(&self, route: &Route, shard: &str) -> RawDocumentBuf {
        let Some(table) = &route.table else {
            return route.versions(shard);
        };
        let (name, ranges): (CString, _) = match self {
            Limits::Only(ranges) => (cstr!("only").into(), ranges),
            Limits::Except(ranges) => (cstr!("except").into(), ranges),
        };
        let mut version = table.shard_version(shard).to_document();
        version.append(name, ranges.to_array());
        rawdoc! { "shardVersion": version }
    }
}

/// The shards, of those that a statement goes to, that have to run it yet.
pub fn left_of(route: &Arc<Route>, shards: &[Arc<str>], ran: &[Ran]) -> Vec<Part> {
    let whole = |shard: &Arc<str>| Part {
        shard: shard.clone(),
        limits: None,
    };
    let same_route = ran.iter().all(|ran| Arc::ptr_eq(&ran.route, route));
    let Some(table) = route.table.as_ref().filter(|_| !same_route) else {
        let open = |shard: &&Arc<str>| ran.iter().all(|ran| ran.shard != **shard);
        return shards.iter().filter(open).map(whole).collect();
    };
    let mut done = Coverage::default();
    for ran in ran {
        // Another collection of that name is a matter of its own.
        if let Some(then) = &ran.route.table
            && then.version().epoch == table.version().epoch
        {
            done.add(Coverage::of_shard(then, &ran.shard));
        }
    }
    let part = |shard: &Arc<str>| {
        let owned = Coverage::of_shard(table, shard);
        let (open, had) = (owned.without(&done), owned.and(&done));
        let limits = if open.is_empty() {
            return None;
        } else if had.is_empty() {
            None
        } else if open.len() <= had.len() {
            Some(Limits::Only(open))
        } else {
            Some(Limits::Except(had))
        };
        Some(Part {
            shard: shard.clone(),
            limits,
        })
    };
    shards.iter().filter_map(part).collect()
}
