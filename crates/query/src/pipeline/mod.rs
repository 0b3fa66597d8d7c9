//! Aggregation pipelines: parsed into stages, run document by document.
//!
//! `stage.rs` says what a stage is, `sequence.rs` what a pipeline of them is; each stage has a file
//! of its own, and a row in `table.rs`, which none of them knows. `parse.rs` reads what was written
//! by that table, and the passes in `optimizer` put it into the form in which it runs. A running
//! pipeline (`execute.rs`) pushes borrowed documents through the runs of its stages: nothing is copied on the
//! way unless a stage makes a new document, and only what leaves the last run is owned. Runs that
//! hold documents back (`$group`, `$sort`) hand them on when the input has ended.
//!
//! What needs other collections is left to the caller: `$lookup` and its like read through
//! `Sources`, `$out` and `$merge` are described by `Pipeline::output` and carried out by whoever
//! runs the pipeline. `split.rs` divides a pipeline between the shards and the router.

mod accumulator;
mod ahead;
mod bucket;
mod bucket_auto;
mod densify;
mod dependencies;
mod documents;
mod drop_fields;
mod execute;
mod facet;
mod field_name;
mod fill;
mod foreign;
mod foreign_query;
mod geo_near;
mod granularity;
mod group;
mod group_key;
mod limit;
mod lookup;
mod matching;
mod member;
mod merge;
mod metadata;
mod near_query;
mod optimizer;
mod outline;
mod output;
mod parse;
mod project;
mod pushdown;
mod read_cost;
mod redact;
mod refused;
mod replace;
mod sample;
mod sequence;
mod series_near;
mod sort;
mod sort_key;
mod source;
mod source_name;
mod source_options;
mod specification;
mod split;
mod split_event;
mod stage;
mod stage_run;
mod table;
mod text_score;
mod union;
mod unpack_bucket;
mod unwind;
mod window;
mod write;

pub use dependencies::Dependencies;
pub use execute::{Execution, Run};
pub use foreign::{Documents, Sources};
pub use foreign_query::ForeignQuery;
pub use group::{Group, Representative};
pub use limit::{Limit, Skip};
pub use lookup::Lookup;
pub use matching::{Match, names_where};
pub use merge::{Merge, WhenNotMatched, with_id};
pub use near_query::{GeoNear, NearFields};
pub use output::Output;
pub use project::Projector;
pub use read_cost::ReadCost;
pub use redact::Redact;
pub use replace::ReplaceRoot;
pub use sample::Sample;
pub use sequence::Pipeline;
pub use sort::Sort;
pub use sort_key::SortKey;
pub use source::{Source, outside_admin};
pub use split::Split;
pub use split_event::SplitLargeEvent;
pub use stage::{Changes, Division, Reads, Stage};
pub use stage_run::{Drained, Flow, Next, StageRun, Start};
pub use table::stage_names;
pub use union::UnionWith;
pub use unwind::Unwind;

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod spilled_tests;
#[cfg(test)]
mod tests;
