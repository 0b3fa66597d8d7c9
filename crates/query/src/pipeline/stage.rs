//! The stages and the table that parses them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::documents::LiteralDocuments;
use super::execute::{Flow, Next, Start, Step};
use super::facet::Facet;
use super::group::Group;
use super::limit::{LimitStep, SkipStep};
use super::lookup::Lookup;
use super::output::Output;
use super::project::Projector;
use super::redact::RedactStep;
use super::replace::ReplaceRoot;
use super::sample::SampleStep;
use super::sort::SortStage;
use super::union::UnionWith;
use super::unwind::Unwind;
use super::{
    bucket, documents, facet, group, limit, lookup, output, project, redact, replace, sample, sort,
    union,
};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::value::error;
use crate::filter::Filter;
use crate::variables::Variables;

#[derive(Clone, Debug)]
pub enum Stage {
    Match(Match),
    /// `$project` and `$unset`.
    Project(Arc<Projector>),
    /// `$addFields` and `$set`.
    AddFields(Arc<Projector>),
    Group(Arc<Group>),
    Sort(SortStage),
    Limit(u64),
    Skip(u64),
    Unwind(Unwind),
    ReplaceRoot(Arc<ReplaceRoot>),
    Redact(Arc<Expression>),
    Sample(u64),
    Facet(Arc<Facet>),
    Lookup(Arc<Lookup>),
    UnionWith(Arc<UnionWith>),
    /// `$documents`: the documents themselves.
    Documents(Arc<LiteralDocuments>),
    /// `$out` and `$merge`.
    Output(Output),
    /// A first stage that only the node can answer (`$collStats`, `$indexStats`, ...): its name
    /// and its argument.
    Source {
        name: &'static str,
        argument: RawDocumentBuf,
    },
}

/// A `$match`, with the text it was parsed from for those who push it down.
#[derive(Clone, Debug)]
pub struct Match {
    pub filter: Arc<Filter>,
    pub source: RawDocumentBuf,
}

/// Where a stage stands, for those that may only stand first or last.
#[derive(Clone, Copy)]
pub(super) struct Position {
    pub first: bool,
    pub last: bool,
}

type Parse = fn(RawBsonRef<'_>, &Context, &mut Vec<Stage>) -> Result<(), QueryError>;

enum Entry {
    Anywhere(Parse),
    /// Reads from elsewhere than the collection and so must be first.
    First(Parse),
    /// Writes and so must be last.
    Last(Parse),
    /// Answered by the node; the argument is a document.
    Node,
    /// MongoDB has it, this server does not yet.
    NotImplemented,
}

static TABLE: LazyLock<HashMap<&'static str, Entry>> = LazyLock::new(|| {
    HashMap::from([
        ("$addFields", Entry::Anywhere(project::parse_add_fields)),
        ("$bucket", Entry::Anywhere(bucket::parse)),
        ("$bucketAuto", Entry::NotImplemented),
        ("$changeStream", Entry::Node),
        ("$changeStreamSplitLargeEvent", Entry::NotImplemented),
        ("$collStats", Entry::Node),
        ("$count", Entry::Anywhere(group::parse_count)),
        ("$currentOp", Entry::Node),
        ("$densify", Entry::NotImplemented),
        ("$documents", Entry::First(documents::parse)),
        ("$facet", Entry::Anywhere(facet::parse)),
        ("$fill", Entry::NotImplemented),
        ("$geoNear", Entry::NotImplemented),
        ("$graphLookup", Entry::NotImplemented),
        ("$group", Entry::Anywhere(group::parse)),
        ("$indexStats", Entry::Node),
        ("$limit", Entry::Anywhere(limit::parse_limit)),
        ("$listCatalog", Entry::NotImplemented),
        ("$listClusterCatalog", Entry::NotImplemented),
        ("$listLocalSessions", Entry::Node),
        ("$listSampledQueries", Entry::NotImplemented),
        ("$listSearchIndexes", Entry::NotImplemented),
        ("$listSessions", Entry::Node),
        ("$lookup", Entry::Anywhere(lookup::parse)),
        ("$match", Entry::Anywhere(parse_match)),
        ("$merge", Entry::Last(output::parse_merge)),
        ("$out", Entry::Last(output::parse_out)),
        ("$planCacheStats", Entry::Node),
        ("$project", Entry::Anywhere(project::parse_project)),
        ("$querySettings", Entry::NotImplemented),
        ("$queryStats", Entry::NotImplemented),
        ("$rankFusion", Entry::NotImplemented),
        ("$redact", Entry::Anywhere(redact::parse)),
        ("$replaceRoot", Entry::Anywhere(replace::parse_root)),
        ("$replaceWith", Entry::Anywhere(replace::parse_with)),
        ("$sample", Entry::Anywhere(sample::parse)),
        ("$score", Entry::NotImplemented),
        ("$scoreFusion", Entry::NotImplemented),
        ("$search", Entry::NotImplemented),
        ("$searchMeta", Entry::NotImplemented),
        ("$set", Entry::Anywhere(project::parse_set)),
        ("$setWindowFields", Entry::NotImplemented),
        ("$shardedDataDistribution", Entry::NotImplemented),
        ("$skip", Entry::Anywhere(limit::parse_skip)),
        ("$sort", Entry::Anywhere(sort::parse)),
        ("$sortByCount", Entry::Anywhere(group::parse_sort_by_count)),
        ("$unionWith", Entry::Anywhere(union::parse)),
        ("$unset", Entry::Anywhere(project::parse_unset)),
        ("$unwind", Entry::Anywhere(super::unwind::parse)),
        ("$vectorSearch", Entry::NotImplemented),
    ])
});

/// Parses one stage; some are short for several.
pub(super) fn parse(
    stage: &RawDocument,
    position: Position,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let mut elements = stage.iter().map_while(Result::ok);
    let (Some((name, argument)), None) = (elements.next(), elements.next()) else {
        return error(
            40323,
            "A pipeline stage specification object must contain exactly one field.",
        );
    };
    let name = name.as_str();
    let Some((name, entry)) = TABLE.get_key_value(name) else {
        return error(40324, format!("Unrecognized pipeline stage name: '{name}'"));
    };
    match entry {
        Entry::Anywhere(parse) => parse(argument, context, out),
        Entry::First(_) | Entry::Node if !position.first => error(
            40602,
            format!("{name} is only valid as the first stage in a pipeline"),
        ),
        Entry::First(parse) => parse(argument, context, out),
        Entry::Last(_) if !position.last => error(
            40601,
            format!("{name} can only be the final stage in the pipeline"),
        ),
        Entry::Last(parse) => parse(argument, context, out),
        Entry::Node => {
            let RawBsonRef::Document(argument) = argument else {
                return Err(QueryError::new(
                    ErrorKind::FailedToParse,
                    format!("the argument of {name} must be an object"),
                ));
            };
            out.push(Stage::Source {
                name,
                argument: argument.to_owned(),
            });
            Ok(())
        }
        Entry::NotImplemented => Err(QueryError::new(
            ErrorKind::NotImplemented,
            format!("the stage {name} is not implemented yet"),
        )),
    }
}

/// Parses the stages of a nested pipeline (`$facet`, `$lookup`, `$unionWith`).
pub(super) fn parse_nested(
    operator: &str,
    array: &bson::RawArray,
    context: &Context,
) -> Result<super::Pipeline, QueryError> {
    let mut stages = Vec::new();
    for item in crate::expression::value::items(array) {
        match item {
            RawBsonRef::Document(stage) => {
                let name = stage
                    .iter()
                    .next()
                    .and_then(Result::ok)
                    .map(|(name, _)| name.as_str());
                if let Some(name @ ("$out" | "$merge" | "$changeStream")) = name {
                    let code = if operator == "$facet" { 40600 } else { 51047 };
                    return error(
                        code,
                        format!("{name} is not allowed to be used within a {operator} stage"),
                    );
                }
                stages.push(stage);
            }
            _ => {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    "Each element of the 'pipeline' array must be an object",
                ));
            }
        }
    }
    super::Pipeline::parse(&stages, context)
}

fn parse_match(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(15959, "the match filter must be an expression in an object");
    };
    let filter = Filter::parse(document, context)?;
    out.push(Stage::Match(Match::new(document, filter)));
    Ok(())
}

impl Match {
    pub(super) fn new(source: &RawDocument, filter: Filter) -> Match {
        Match {
            source: source.to_owned(),
            filter: Arc::new(filter),
        }
    }

    /// The filter with the values of the variables around it.
    fn filter_within(&self, variables: &Variables) -> Arc<Filter> {
        if variables.is_empty() || !self.filter.computes() {
            return self.filter.clone();
        }
        Arc::new(self.filter.bind(variables))
    }
}

impl Stage {
    /// The name as the user writes it.
    pub fn name(&self) -> &'static str {
        match self {
            Stage::Match(_) => "$match",
            Stage::Project(_) => "$project",
            Stage::AddFields(_) => "$addFields",
            Stage::Group(_) => "$group",
            Stage::Sort(_) => "$sort",
            Stage::Limit(_) => "$limit",
            Stage::Skip(_) => "$skip",
            Stage::Unwind(_) => "$unwind",
            Stage::ReplaceRoot(_) => "$replaceRoot",
            Stage::Redact(_) => "$redact",
            Stage::Sample(_) => "$sample",
            Stage::Facet(_) => "$facet",
            Stage::Lookup(_) => "$lookup",
            Stage::UnionWith(_) => "$unionWith",
            Stage::Documents(_) => "$documents",
            Stage::Output(output) => output.name(),
            Stage::Source { name, .. } => name,
        }
    }

    /// Whether the stage brings its own documents instead of reading its input.
    pub fn is_source(&self) -> bool {
        matches!(self, Stage::Source { .. } | Stage::Documents(_))
    }

    pub(super) fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        match self {
            Stage::Lookup(lookup) => lookup.collections_read(names),
            Stage::UnionWith(union) => union.collections_read(names),
            Stage::Facet(facet) => {
                facet
                    .pipelines()
                    .for_each(|p| names.extend(p.collections_read()));
            }
            _ => {}
        }
    }

    /// The stage at work; none for stages that the caller carries out.
    pub(super) fn step(&self, start: &Start<'_>) -> Result<Option<Box<dyn Step>>, QueryError> {
        Ok(Some(match self {
            Stage::Match(stage) => Box::new(MatchStep {
                filter: stage.filter_within(start.variables),
            }),
            Stage::Project(projector) | Stage::AddFields(projector) => {
                Box::new(project::ProjectStep::new(projector.clone(), start))
            }
            Stage::Group(group) => Box::new(group::GroupStep::new(group.clone(), start)),
            Stage::Sort(stage) => stage.step(start.budget),
            Stage::Limit(limit) => Box::new(LimitStep::new(*limit)),
            Stage::Skip(skip) => Box::new(SkipStep::new(*skip)),
            Stage::Unwind(unwind) => unwind.step(start.needed.clone(), start.budget),
            Stage::ReplaceRoot(replace) => Box::new(replace::ReplaceStep::new(replace, start)),
            Stage::Redact(expression) => {
                Box::new(RedactStep::new(expression.bind(start.variables)))
            }
            Stage::Sample(size) => Box::new(SampleStep::new(*size, start.budget)),
            Stage::Facet(facet) => facet.step(start)?,
            Stage::Lookup(lookup) => lookup.step(start)?,
            Stage::UnionWith(union) => union.step(start)?,
            Stage::Documents(documents) => documents.step(start)?,
            Stage::Output(_) | Stage::Source { .. } => return Ok(None),
        }))
    }

    /// Whether each document is handled by itself, so that shards can do it alone.
    pub(super) fn is_per_document(&self) -> bool {
        matches!(
            self,
            Stage::Match(_)
                | Stage::Project(_)
                | Stage::AddFields(_)
                | Stage::Unwind(_)
                | Stage::ReplaceRoot(_)
                | Stage::Redact(_)
        )
    }
}

struct MatchStep {
    filter: Arc<Filter>,
}

impl Step for MatchStep {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        if self.filter.try_matches(document)? {
            next.push(document)
        } else {
            Ok(Flow::Continue)
        }
    }
}
