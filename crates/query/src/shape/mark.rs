//! Clients' names in a shape: those of fields, variables, collections and databases.
//!
//! They are marked where the shape is made, by a character before them. Nothing else of a shape
//! begins with one, as operators do not, and what clients write is either a name or left out. So a
//! shape can be shown with other names in the place of these, without parsing it again.

use banyan_document::DocumentWriter;
use banyan_document::element::elements;
use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

/// Before a path, `$path` or `$$variable.path`.
const PATH: char = '\u{1}';
/// Before a name that is one whatever is in it.
const WHOLE: char = '\u{2}';

/// Variables that MongoDB has, whose names tell nothing.
const SYSTEM_VARIABLES: [&str; 11] = [
    "CLUSTER_TIME",
    "CURRENT",
    "DESCEND",
    "IS_MR",
    "JS_SCOPE",
    "KEEP",
    "NOW",
    "PRUNE",
    "REMOVE",
    "ROOT",
    "USER_ROLES",
];

/// The path of a field, or what begins with `$` and names one.
pub(super) fn path(path: &str) -> String {
    format!("{PATH}{path}")
}

/// The name of a collection or database.
pub(super) fn whole(name: &str) -> String {
    format!("{WHOLE}{name}")
}

/// How clients' names are shown.
pub enum Names<'h> {
    AsTheyAre,
    /// Each as what this makes of it.
    Hidden(&'h dyn Fn(&str) -> String),
}

impl Names<'_> {
    fn name(&self, name: &str) -> String {
        match self {
            Names::AsTheyAre => name.to_owned(),
            Names::Hidden(hide) => hide(name),
        }
    }

    /// Part by part: a path is known again behind a longer one.
    fn path(&self, path: &str) -> String {
        let part = |part: &str| match part {
            // The place at which an array matched is no name.
            "$" => part.to_owned(),
            _ => self.name(part),
        };
        let parts: Vec<_> = path.split('.').map(part).collect();
        parts.join(".")
    }

    fn marked(&self, text: &str) -> Option<String> {
        if let Some(name) = text.strip_prefix(WHOLE) {
            return Some(self.name(name));
        }
        let text = text.strip_prefix(PATH)?;
        if matches!(self, Names::AsTheyAre) {
            return Some(text.to_owned());
        }
        Some(match text.strip_prefix("$$") {
            Some(variable) => {
                let (name, rest) = match variable.split_once('.') {
                    Some((name, rest)) => (name, Some(rest)),
                    None => (variable, None),
                };
                let name = match SYSTEM_VARIABLES.contains(&name) {
                    true => name.to_owned(),
                    false => self.name(name),
                };
                match rest {
                    Some(rest) => format!("$${name}.{}", self.path(rest)),
                    None => format!("$${name}"),
                }
            }
            None => match text.strip_prefix('$') {
                Some(path) => format!("${}", self.path(path)),
                None => self.path(text),
            },
        })
    }
}

/// The document with its marked names as they are to be shown.
pub fn show(document: &RawDocument, names: &Names<'_>) -> RawDocumentBuf {
    let mut out = DocumentWriter::with_capacity(document.as_bytes().len());
    fields(document, names, &mut out);
    out.finish()
}

fn fields(document: &RawDocument, names: &Names<'_>, out: &mut DocumentWriter) {
    for element in elements(document) {
        let shown = names.marked(element.name());
        let name = shown.as_deref().unwrap_or(element.name());
        match element.value() {
            RawBsonRef::Document(inner) => {
                out.begin_document(name);
                fields(inner, names, out);
                out.end();
            }
            RawBsonRef::Array(array) => {
                out.begin_array(name);
                items(array, names, out);
                out.end();
            }
            RawBsonRef::String(text) => match names.marked(text) {
                Some(shown) => out.append_str(name, &shown),
                None => out.append_str(name, text),
            },
            other => out.append(name, other),
        }
    }
}

fn items(array: &RawArray, names: &Names<'_>, out: &mut DocumentWriter) {
    for item in banyan_document::element::items(array) {
        match item.value() {
            RawBsonRef::Document(inner) => {
                out.push_document();
                fields(inner, names, out);
                out.end();
            }
            RawBsonRef::Array(inner) => {
                out.push_array();
                items(inner, names, out);
                out.end();
            }
            RawBsonRef::String(text) => match names.marked(text) {
                Some(shown) => out.push(RawBsonRef::String(&shown)),
                None => out.push(RawBsonRef::String(text)),
            },
            other => out.push(other),
        }
    }
}
