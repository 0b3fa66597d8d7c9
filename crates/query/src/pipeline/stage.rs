//! What a stage is: one type that implements [`Stage`], and one row in `table.rs`.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bson::RawDocumentBuf;

use banyan_document::DocumentWriter;

use super::dependencies::top;
use super::output::Output;
use super::sort_key::SortKey;
use super::stage_run::{StageRun, Start};
use crate::error::QueryError;

pub trait Stage: Any + fmt::Debug + Send + Sync {
    /// As the user writes it, with its `$`.
    fn name(&self) -> &'static str;

    /// Writes the stage as a field: its name and its argument. What is parsed from that does the
    /// same.
    fn serialize(&self, out: &mut DocumentWriter);

    /// The stage at work.
    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError>;

    /// Adds the paths that it reads, and says what its results are made of.
    fn reads(&self, _paths: &mut BTreeSet<String>) -> Reads {
        Reads::Everything
    }

    /// Which fields of a document it changes.
    fn changes(&self) -> Changes {
        Changes::Everything
    }

    /// Whether it has the same results if what a filter behind it drops is dropped before it. It is
    /// asked for filters of fields that it does not change.
    fn is_filter_transparent(&self) -> bool {
        false
    }

    /// Whether it makes one document of each.
    fn is_one_to_one(&self) -> bool {
        false
    }

    /// Whether it makes no more than one document of each.
    fn makes_at_most_one(&self) -> bool {
        self.is_one_to_one()
    }

    /// How it is divided between the shards and the router.
    fn split(&self) -> Division {
        Division::Router
    }

    /// Whether it gathers its input before it hands anything on, and several of it that have seen a
    /// part each can be put together ([`StageRun::absorb`]).
    fn gathers(&self) -> bool {
        false
    }

    /// Whether parts of its input may be handed to several of it, and what they hand on, in the order
    /// of the parts, is what one hands on for the whole. What comes when the input has ended is left
    /// to the one that no part is handed to.
    fn runs_in_parts(&self) -> bool {
        let mut read = Vec::new();
        self.collections_read(&mut read);
        matches!(self.split(), Division::Shards) && read.is_empty()
    }

    /// The other collections that it reads: the database where it is named, and the name.
    fn collections_read(&self, _names: &mut Vec<(Option<String>, String)>) {}

    /// Whether it brings its own documents instead of reading its input.
    fn is_source(&self) -> bool {
        false
    }

    /// Where its results are written, if they are.
    fn output(&self) -> Option<&Output> {
        None
    }
}

impl dyn Stage {
    /// The stage as the type it is.
    pub fn get<S: Stage>(&self) -> Option<&S> {
        let stage: &dyn Any = self;
        stage.downcast_ref()
    }

    pub fn is<S: Stage>(&self) -> bool {
        self.get::<S>().is_some()
    }

    /// `{name: argument}`.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut writer = DocumentWriter::new();
        self.serialize(&mut writer);
        writer.finish()
    }
}

/// What the results of a stage are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Of all fields of its input; those named are read.
    AndPasses,
    /// Of the fields named and nothing else.
    Only,
    /// It may look at anything.
    Everything,
}

/// Which fields of a document a stage changes. A stage that may make several documents of one, or
/// none, says it of each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// These top-level fields; all others stay as they are. One of `renamed` is a top-level field of
    /// the input, under this name or a new one.
    Fields {
        changed: BTreeSet<String>,
        renamed: BTreeMap<String, String>,
    },
    /// All but what lies at these paths, and the same.
    AllBut {
        kept: BTreeSet<String>,
        renamed: BTreeMap<String, String>,
    },
    Everything,
}

impl Changes {
    pub fn nothing() -> Changes {
        Changes::at([])
    }

    /// The fields at these paths.
    pub fn at<'p>(paths: impl IntoIterator<Item = &'p str>) -> Changes {
        Changes::Fields {
            changed: paths.into_iter().map(|path| top(path).to_owned()).collect(),
            renamed: BTreeMap::new(),
        }
    }

    /// The path in the input whose value stands unchanged at `path` in the results.
    pub fn origin(&self, path: &str) -> Option<String> {
        let (first, rest) = path.split_at(top(path).len());
        let named = |renamed: &BTreeMap<String, String>| {
            let old = renamed.get(first)?;
            Some(format!("{old}{rest}"))
        };
        match self {
            Changes::Fields { changed, renamed } => match changed.contains(first) {
                true => named(renamed),
                false => Some(path.to_owned()),
            },
            Changes::AllBut { kept, renamed } => {
                let below = |above: &String| {
                    let rest = path.strip_prefix(above.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                };
                if kept.iter().any(below) {
                    return Some(path.to_owned());
                }
                named(renamed)
            }
            Changes::Everything => None,
        }
    }
}

/// How a stage is divided between the shards and the router.
pub enum Division {
    /// It handles each document by itself, so that the shards can do it alone.
    Shards,
    /// The shards do a part of it, and the router the rest.
    Both {
        shards: Vec<Arc<dyn Stage>>,
        /// The order in which each shard's results come. None: as they come.
        order: Option<SortKey>,
        router: Vec<Arc<dyn Stage>>,
    },
    Router,
}
