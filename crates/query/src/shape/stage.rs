//! Stages in a shape.
//!
//! What is said of a stage is what each of its options holds; of a stage that is not named here, as
//! none of its options holds a name or an expression, nothing is told but its options' types.

use banyan_document::DocumentWriter;
use banyan_document::element::{Element, elements, items};
use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::expression::{expression, named};
use super::literal::{constant, constants};
use super::sort::{sort, values};
use super::{filter, mark, projection};

/// What a stage's argument, or an option of it, holds.
#[derive(Clone, Copy)]
enum Holds {
    Filter,
    Expression,
    /// Fields with expressions.
    Computed,
    Projection,
    Sort,
    /// A value that does not count.
    Constant,
    /// A word of the server's.
    Word,
    /// The path of a field, or several.
    Path,
    /// A collection, or one of a database.
    Collection,
    Pipeline,
    /// Pipelines by the client's names.
    Pipelines,
    Options(&'static [(&'static str, Holds)]),
    /// The client's names with these options each.
    Each(&'static [(&'static str, Holds)]),
}

use Holds::{
    Collection, Computed, Constant, Each, Expression, Filter, Options, Path, Pipeline, Pipelines,
    Projection, Sort, Word,
};

static STAGES: &[(&str, Holds)] = &[
    ("$addFields", Computed),
    (
        "$bucket",
        Options(&[("groupBy", Expression), ("output", Computed)]),
    ),
    (
        "$bucketAuto",
        Options(&[("groupBy", Expression), ("output", Computed)]),
    ),
    ("$count", Path),
    (
        "$densify",
        Options(&[
            ("field", Path),
            ("partitionByFields", Path),
            ("range", Options(&[("unit", Word)])),
        ]),
    ),
    ("$documents", Expression),
    ("$facet", Pipelines),
    (
        "$fill",
        Options(&[
            ("partitionBy", Expression),
            ("partitionByFields", Path),
            ("sortBy", Sort),
            ("output", Each(&[("value", Expression), ("method", Word)])),
        ]),
    ),
    (
        "$geoNear",
        Options(&[
            ("distanceField", Path),
            ("includeLocs", Path),
            ("key", Path),
            ("query", Filter),
        ]),
    ),
    (
        "$graphLookup",
        Options(&[
            ("from", Collection),
            ("as", Path),
            ("startWith", Expression),
            ("connectFromField", Path),
            ("connectToField", Path),
            ("depthField", Path),
            ("restrictSearchWithMatch", Filter),
        ]),
    ),
    ("$group", Computed),
    ("$limit", Constant),
    (
        "$lookup",
        Options(&[
            ("from", Collection),
            ("as", Path),
            ("localField", Path),
            ("foreignField", Path),
            ("let", Computed),
            ("pipeline", Pipeline),
        ]),
    ),
    ("$match", Filter),
    (
        "$merge",
        Options(&[
            ("into", Collection),
            ("on", Path),
            ("let", Computed),
            ("whenMatched", Pipeline),
            ("whenNotMatched", Word),
        ]),
    ),
    ("$out", Collection),
    ("$project", Projection),
    (
        "$queryStats",
        Options(&[("transformIdentifiers", Options(&[("algorithm", Word)]))]),
    ),
    ("$redact", Expression),
    ("$replaceRoot", Options(&[("newRoot", Expression)])),
    ("$replaceWith", Expression),
    ("$set", Computed),
    (
        "$setWindowFields",
        Options(&[
            ("partitionBy", Expression),
            ("sortBy", Sort),
            ("output", Computed),
        ]),
    ),
    ("$skip", Constant),
    ("$sort", Sort),
    ("$sortByCount", Expression),
    (
        "$unionWith",
        Options(&[("coll", Collection), ("pipeline", Pipeline)]),
    ),
    ("$unset", Path),
    (
        "$unwind",
        Options(&[("path", Path), ("includeArrayIndex", Path)]),
    ),
];

/// The stages of a pipeline, as they were written.
pub(super) fn pipeline(stages: &RawArray) -> RawArrayBuf {
    items(stages)
        .map(|stage| match stage.value() {
            RawBsonRef::Document(stage) => RawBson::Document(self::stage(stage)),
            other => constant(other),
        })
        .collect()
}

fn stage(stage: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for element in elements(stage) {
        let shown = shown(&element, holds(element.name()));
        out.append(element.name(), shown.as_raw_bson_ref());
    }
    out.finish()
}

fn holds(stage: &str) -> Holds {
    let known = STAGES.iter().find(|(name, _)| *name == stage);
    known.map_or(Options(&[]), |(_, holds)| *holds)
}

/// Whether it is said what the stage holds.
#[cfg(test)]
pub(super) fn is_known(stage: &str) -> bool {
    STAGES.iter().any(|(name, _)| *name == stage)
}

fn shown(element: &Element<'_>, holds: Holds) -> RawBson {
    match (holds, element.value()) {
        (Filter, RawBsonRef::Document(filter)) => RawBson::Document(filter::filter(filter)),
        (Expression, value) => expression(value),
        (Computed, RawBsonRef::Document(computed)) => RawBson::Document(named(computed)),
        (Projection, RawBsonRef::Document(inner)) => {
            RawBson::Document(projection::projection(inner))
        }
        (Sort, RawBsonRef::Document(by)) => RawBson::Document(sort(by)),
        (Word, RawBsonRef::String(word)) if is_word(word) => RawBson::String(word.to_owned()),
        // What may be written as options may be a path alone.
        (Path | Options(_), RawBsonRef::String(path)) if may_be_path(element.name()) => {
            RawBson::String(mark::path(path))
        }
        (Path, RawBsonRef::Array(paths)) => RawBson::Array(self::paths(paths)),
        (Path, RawBsonRef::Document(paths)) => RawBson::Document(values(paths)),
        (Collection | Options(_), RawBsonRef::String(name)) => RawBson::String(mark::whole(name)),
        (Collection, RawBsonRef::Document(target)) => RawBson::Document(collection(target)),
        (Pipeline, RawBsonRef::Array(stages)) => RawBson::Array(pipeline(stages)),
        // Of a `$merge`: what it does, where it is no pipeline.
        (Pipeline, RawBsonRef::String(word)) if is_word(word) => RawBson::String(word.to_owned()),
        (Pipelines, RawBsonRef::Document(facets)) => {
            let mut out = DocumentWriter::new();
            for facet in elements(facets) {
                let shown = shown(&facet, Pipeline);
                out.append(&mark::path(facet.name()), shown.as_raw_bson_ref());
            }
            RawBson::Document(out.finish())
        }
        (Options(known), RawBsonRef::Document(given)) => RawBson::Document(options(known, given)),
        (Each(known), RawBsonRef::Document(named)) => {
            let mut out = DocumentWriter::new();
            for one in elements(named) {
                let shown = shown(&one, Options(known));
                out.append(&mark::path(one.name()), shown.as_raw_bson_ref());
            }
            RawBson::Document(out.finish())
        }
        (_, value) => constant(value),
    }
}

/// `$unwind: '$a'` and `$count: 'n'`, but not `$unionWith: 'c'`.
fn may_be_path(name: &str) -> bool {
    !matches!(name, "$unionWith" | "$merge")
}

/// Words of the server's are of letters; anything else is wrong there.
fn is_word(word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    word.len() <= 32 && word.bytes().all(is_part)
}

fn options(known: &[(&str, Holds)], given: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for option in elements(given) {
        let holds = known.iter().find(|(name, _)| *name == option.name());
        let shown = match (holds, option.value()) {
            (Some((_, holds)), _) => shown(&option, *holds),
            (None, RawBsonRef::Document(inner)) if !inner.is_empty() => {
                RawBson::Document(constants(inner))
            }
            (None, value) => constant(value),
        };
        out.append(option.name(), shown.as_raw_bson_ref());
    }
    out.finish()
}

fn paths(paths: &RawArray) -> RawArrayBuf {
    items(paths)
        .map(|path| match path.value() {
            RawBsonRef::String(path) => RawBson::String(mark::path(path)),
            other => constant(other),
        })
        .collect()
}

fn collection(target: &RawDocument) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    for part in elements(target) {
        match (part.name(), part.value()) {
            ("db" | "coll", RawBsonRef::String(name)) => {
                out.append_str(part.name(), &mark::whole(name));
            }
            (_, RawBsonRef::Document(options)) => {
                out.append_doc(part.name(), &constants(options));
            }
            (name, value) => out.append(name, constant(value).as_raw_bson_ref()),
        }
    }
    out.finish()
}

/// The collections that the stages read or write beside their pipeline's: the database where it is
/// named, and the name.
pub(super) fn other_collections(stages: &RawArray, found: &mut Vec<(Option<String>, String)>) {
    let documents = items(stages).filter_map(|stage| match stage.value() {
        RawBsonRef::Document(stage) => Some(stage),
        _ => None,
    });
    for element in documents.flat_map(elements) {
        collections_of(&element, holds(element.name()), found);
    }
}

fn collections_of(element: &Element<'_>, holds: Holds, found: &mut Vec<(Option<String>, String)>) {
    match (holds, element.value()) {
        (Collection, RawBsonRef::String(name)) => found.push((None, name.to_owned())),
        (Options(_), RawBsonRef::String(name)) if !may_be_path(element.name()) => {
            found.push((None, name.to_owned()));
        }
        (Collection, RawBsonRef::Document(target)) => {
            let part = |name| {
                banyan_document::field(target, name)?
                    .as_str()
                    .map(str::to_owned)
            };
            found.extend(part("coll").map(|collection| (part("db"), collection)));
        }
        (Pipeline, RawBsonRef::Array(stages)) => other_collections(stages, found),
        (Pipelines, RawBsonRef::Document(facets)) => {
            for facet in elements(facets) {
                collections_of(&facet, Pipeline, found);
            }
        }
        (Options(known), RawBsonRef::Document(given)) => {
            for option in elements(given) {
                let known = known.iter().find(|(name, _)| *name == option.name());
                if let Some((_, holds)) = known {
                    collections_of(&option, *holds, found);
                }
            }
        }
        _ => {}
    }
}
