//! The shape of a command that reads: `find`, `aggregate`, `distinct`.

use std::fmt;

use banyan_document::DocumentWriter;
use banyan_document::element::{Element, elements};
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use sha2::{Digest, Sha256};

use super::expression::named;
use super::literal::constant;
use super::mark::{self, Names, show};
use super::sort::{sort, values};
use super::{filter, projection, stage};

/// What a command has in common with all that differ in their values only. Hints, batches and times
/// are no part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryShape {
    /// With its names marked.
    document: RawDocumentBuf,
    hash: [u8; 32],
}

/// What an option of a command is in its shape.
type Write = fn(&Element<'_>, &mut DocumentWriter);

/// The options of a command in the order in which its shape has them.
struct Command {
    name: &'static str,
    options: &'static [(&'static str, Write)],
}

static COMMANDS: [Command; 3] = [
    Command {
        name: "find",
        options: &[
            ("filter", write_filter),
            ("projection", write_projection),
            ("sort", write_sort),
            ("min", write_values),
            ("max", write_values),
            ("skip", write_number),
            ("limit", write_number),
            ("singleBatch", write_flag),
            ("allowDiskUse", write_choice),
            ("returnKey", write_flag),
            ("showRecordId", write_flag),
            ("tailable", write_flag),
            ("oplogReplay", write_flag),
            ("awaitData", write_flag),
            ("collation", write_as_it_is),
            ("let", write_variables),
        ],
    },
    Command {
        name: "aggregate",
        options: &[
            ("pipeline", write_pipeline),
            ("allowDiskUse", write_choice),
            ("collation", write_as_it_is),
            ("let", write_variables),
        ],
    },
    Command {
        name: "distinct",
        options: &[
            ("key", write_path),
            ("query", write_filter),
            ("collation", write_as_it_is),
        ],
    },
];

fn write_filter(option: &Element<'_>, out: &mut DocumentWriter) {
    if let RawBsonRef::Document(written) = option.value() {
        out.append_doc(option.name(), &filter::filter(written));
    }
}

/// An empty document is as good as none.
fn write_document(
    option: &Element<'_>,
    shape: fn(&RawDocument) -> RawDocumentBuf,
    out: &mut DocumentWriter,
) {
    match option.value() {
        RawBsonRef::Document(written) if !written.is_empty() => {
            out.append_doc(option.name(), &shape(written));
        }
        _ => {}
    }
}

/// No number at all, or zero, asks for nothing.
fn write_number(option: &Element<'_>, out: &mut DocumentWriter) {
    let number = banyan_document::number::Number::from_raw(option.value());
    if number.is_some_and(|number| !number.is_zero()) {
        out.append(option.name(), constant(option.value()).as_raw_bson_ref());
    }
}

/// What is not set may as well not be there.
fn write_flag(option: &Element<'_>, out: &mut DocumentWriter) {
    if option.value() == RawBsonRef::Boolean(true) {
        out.append_bool(option.name(), true);
    }
}

/// Neither way is what holds without it.
fn write_choice(option: &Element<'_>, out: &mut DocumentWriter) {
    if let RawBsonRef::Boolean(flag) = option.value() {
        out.append_bool(option.name(), flag);
    }
}

fn write_as_it_is(option: &Element<'_>, out: &mut DocumentWriter) {
    write_document(option, RawDocument::to_owned, out);
}

fn write_variables(option: &Element<'_>, out: &mut DocumentWriter) {
    write_document(option, named, out);
}

fn write_projection(option: &Element<'_>, out: &mut DocumentWriter) {
    write_document(option, projection::projection, out);
}

fn write_sort(option: &Element<'_>, out: &mut DocumentWriter) {
    write_document(option, sort, out);
}

fn write_values(option: &Element<'_>, out: &mut DocumentWriter) {
    write_document(option, values, out);
}

fn write_pipeline(option: &Element<'_>, out: &mut DocumentWriter) {
    if let RawBsonRef::Array(stages) = option.value() {
        out.append_array(option.name(), &stage::pipeline(stages));
    }
}

fn write_path(option: &Element<'_>, out: &mut DocumentWriter) {
    if let RawBsonRef::String(path) = option.value() {
        out.append_str(option.name(), &mark::path(path));
    }
}

impl QueryShape {
    /// That of a command, if it is one that has a shape. Whether it is right is not looked at.
    pub fn of(database: &str, body: &RawDocument) -> Option<QueryShape> {
        let first = elements(body).next()?;
        let command = COMMANDS.iter().find(|known| known.name == first.name())?;
        let collection = match first.value() {
            RawBsonRef::String(name) => name,
            // Of no collection: `aggregate: 1`.
            _ if command.name == "aggregate" => "$cmd.aggregate",
            _ => return None,
        };
        let mut out = DocumentWriter::new();
        out.begin_document("cmdNs");
        out.append_str("db", &mark::whole(database));
        out.append_str("coll", &mark::whole(collection));
        out.end();
        out.append_str("command", command.name);
        for (name, write) in command.options {
            let given = elements(body).skip(1).find(|option| option.name() == *name);
            match given {
                Some(option) => write(&option, &mut out),
                // All documents are what is asked for without a filter.
                None if *name == "filter" => out.append_doc(name, &RawDocumentBuf::new()),
                None => {}
            }
        }
        let document = out.finish();
        let hash = Sha256::digest(document.as_bytes()).into();
        Some(QueryShape { document, hash })
    }

    pub fn document(&self) -> &RawDocument {
        &self.document
    }

    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// For clients.
    pub fn show(&self, names: &Names<'_>) -> RawDocumentBuf {
        show(&self.document, names)
    }
}

/// The hash as `queryShapeHash` shows it.
impl fmt::Display for QueryShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hash
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

/// What a hint is beside a shape, with its names marked.
pub fn hint(hint: RawBsonRef<'_>) -> RawBson {
    match hint {
        RawBsonRef::Document(pattern) => RawBson::Document(sort(pattern)),
        RawBsonRef::String(name) => {
            let mut named = RawDocumentBuf::new();
            named.append(cstr!("$hint"), mark::whole(name));
            RawBson::Document(named)
        }
        other => constant(other),
    }
}

/// The other collections of an aggregation, with their names marked.
pub fn other_collections(database: &str, body: &RawDocument) -> Vec<RawDocumentBuf> {
    let pipeline = banyan_document::field(body, "pipeline");
    let Some(RawBsonRef::Array(stages)) = pipeline else {
        return Vec::new();
    };
    let mut found = Vec::new();
    stage::other_collections(stages, &mut found);
    found.sort_unstable();
    found.dedup();
    let describe = |(named, collection): (Option<String>, String)| {
        let database = named.as_deref().unwrap_or(database);
        rawdoc! { "db": mark::whole(database), "coll": mark::whole(&collection) }
    };
    found.into_iter().map(describe).collect()
}
