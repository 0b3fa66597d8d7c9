//! What is asked of a collection, and the state of it that is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_query::Budget;
use banyan_query::canonical::{CanonicalQuery, TextScore};
use banyan_query::metadata::Metadata;
use banyan_query::pipeline::NearFields;
use banyan_query::sort::SortPattern;
use banyan_storage::{Collection, Snapshot};
use bson::{RawBsonRef, RawDocument};

use crate::index_filters::AllowedIndexes;
use crate::later::LaterStates;
use crate::operators::{Output, ShardFilter};

/// The state of a collection that a plan reads.
pub struct ReadView {
    /// `None`: it does not exist.
    pub collection: Option<Arc<Collection>>,
    pub snapshot: Snapshot,
    /// Those that the plan may go on in after a rest, if there are any.
    pub later: Option<LaterStates>,
}

/// What is asked of a collection.
#[derive(Clone, Default)]
pub struct Request<'a> {
    pub query: Arc<CanonicalQuery>,
    pub created_from: CreatedFrom<'a>,
    /// The name of an index, its key pattern, or `{$natural: ±1}`.
    pub hint: Option<RawBsonRef<'a>>,
    /// The only indexes that the settings for its shape allow, if these say so.
    pub settings: Option<Arc<AllowedIndexes>>,
    /// A hidden index may be hinted at.
    pub hidden_too: bool,
    /// The ends of a hinted index.
    pub min: Option<&'a RawDocument>,
    pub max: Option<&'a RawDocument>,
    /// One document for each value at a path is enough.
    pub distinct: Option<Distinct>,
    /// The paths that whoever reads looks at, without a projection; `None`: anything.
    pub reads: Option<Arc<BTreeSet<String>>>,
    /// So many documents are wanted, drawn at random. A plan that draws them says so
    /// ([`crate::Executor::is_sample`]); any other finds all.
    pub sample: Option<u64>,
    /// How many documents are taken from a plan that has no limit of its own.
    pub wanted: Option<u64>,
    /// What documents are told of their distances, if they are found by these.
    pub near: Option<Arc<NearFields>>,
    pub show_record_id: bool,
    /// What is known of documents goes out with them.
    pub keeps_metadata: bool,
    /// The keys that documents are found by are wanted, and not the documents.
    pub return_key: bool,
    /// What a router merges the documents by with those of other shards: each brings the bytes, in
    /// [`banyan_query::sort::SORT_KEY_FIELD`].
    pub merge_order: Option<SortPattern>,
    /// What running it may use.
    pub budget: Budget,
    /// `None`: all documents are this shard's.
    pub shard_filter: Option<Arc<dyn ShardFilter>>,
    pub goal: Goal,
    /// The plan cache is neither asked nor taught: an explanation shows the choice.
    pub explains: bool,
}

/// The parts of a query that are shown as they were written, where they are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct CreatedFrom<'a> {
    pub filter: Option<&'a RawDocument>,
    pub projection: Option<&'a RawDocument>,
}

/// The values at a path of which one document each is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distinct {
    pub path: String,
    pub of: DistinctOf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistinctOf {
    /// The values that there are, items of arrays each by itself.
    Values,
    /// Groups of documents with equal values, where a missing one is null. Any document of a group
    /// will do, or it is the first in the query's order, or the last.
    Groups,
    First,
    Last,
}

/// What becomes of the documents that are found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Goal {
    #[default]
    Documents,
    /// Their number.
    Count,
}

impl Request<'_> {
    /// How many documents are looked for.
    pub fn wanted(&self) -> Option<u64> {
        self.query.wanted().or(self.wanted)
    }

    /// What becomes of each document on its way out.
    pub fn output(&self) -> Output {
        let query = &self.query;
        Output {
            projection: query.projection.clone(),
            source: self.created_from.projection.map(RawDocument::to_owned),
            positions: query.positions.clone(),
            show_record_id: self.show_record_id,
            has_no_key: self.return_key,
            merge_order: self.merge_order.clone(),
            drops_score: query.text_score == TextScore::Used,
            drops_metadata: !self.keeps_metadata && self.tells_metadata(),
        }
    }

    /// Whether the keys begin or end where the request says.
    pub fn has_ends(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// Whether the keys matter that documents are found by.
    pub fn wants_keys(&self) -> bool {
        self.return_key || self.query.metadata.has(Metadata::IndexKey)
    }

    /// Whether documents bring more than their fields. What a router merges by the distances of says
    /// them even where nobody asks for them.
    fn tells_metadata(&self) -> bool {
        let by_distance = self.merge_order.is_some() && self.near.is_some();
        by_distance || !self.query.metadata.is_empty()
    }
}
