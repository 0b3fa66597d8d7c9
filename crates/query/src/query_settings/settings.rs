//! The settings of one shape.

use banyan_document::element::{elements, items};
use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::error::{ErrorKind, QueryError};
use crate::expression::value::type_name;

/// Engines that MongoDB has; here they are all the same.
const FRAMEWORKS: [&str; 3] = ["classic", "sbe", "bonsai"];

/// What holds for queries of a shape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuerySettings {
    pub index_hints: Option<Vec<IndexHints>>,
    pub framework: Option<String>,
    pub reject: Option<bool>,
    pub comment: Option<RawBson>,
}

/// The only indexes of a collection that may be used.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexHints {
    pub database: String,
    pub collection: String,
    /// Names, key patterns, `{$natural: ±1}`.
    pub allowed: Vec<RawBson>,
}

fn failed<T>(kind: ErrorKind, message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(kind, message))
}

fn wrong_type<T>(field: &str, value: RawBsonRef<'_>, expected: &str) -> Result<T, QueryError> {
    failed(
        ErrorKind::TypeMismatch,
        format!(
            "BSON field '{field}' is the wrong type '{}', expected {expected}",
            type_name(Some(value))
        ),
    )
}

impl QuerySettings {
    /// As a command writes them. What is not known there is passed over, as in MongoDB.
    pub fn parse(parser: &str, written: &RawDocument) -> Result<QuerySettings, QueryError> {
        let mut settings = QuerySettings::default();
        for element in elements(written) {
            let field = format!("{parser}.{}", element.name());
            match (element.name(), element.value()) {
                ("indexHints", value) => {
                    settings.index_hints = Some(hints(&field, value)?);
                }
                ("queryFramework", RawBsonRef::String(name)) if FRAMEWORKS.contains(&name) => {
                    settings.framework = Some(name.to_owned());
                }
                ("queryFramework", RawBsonRef::String(other)) => {
                    return failed(
                        ErrorKind::BadValue,
                        format!("unexpected value for 'queryFramework': '{other}'"),
                    );
                }
                ("queryFramework", value) => return wrong_type(&field, value, "type 'string'"),
                ("reject", RawBsonRef::Boolean(flag)) => settings.reject = Some(flag),
                ("reject", value) => return wrong_type(&field, value, "type 'bool'"),
                ("comment", value) => settings.comment = Some(owned(value)),
                _ => {}
            }
        }
        Ok(settings)
    }

    /// With what is newly set in the place of what was.
    #[must_use]
    pub fn merged(mut self, newer: QuerySettings) -> QuerySettings {
        self.index_hints = newer.index_hints.or(self.index_hints);
        self.framework = newer.framework.or(self.framework);
        self.reject = newer.reject.or(self.reject);
        self.comment = newer.comment.or(self.comment);
        self
    }

    /// Without what says nothing.
    #[must_use]
    pub fn simplified(mut self) -> QuerySettings {
        self.reject = self.reject.filter(|reject| *reject);
        if let Some(hints) = &mut self.index_hints {
            hints.retain(|hint| !hint.allowed.is_empty());
        }
        self.index_hints = self.index_hints.filter(|hints| !hints.is_empty());
        self
    }

    /// What is wrong with them as a whole.
    pub fn check(&self) -> Result<(), QueryError> {
        if self.index_hints.is_none() && self.framework.is_none() && self.reject.is_none() {
            return failed(
                ErrorKind::Location(7_746_604),
                "the resulting settings cannot be empty or contain only default values",
            );
        }
        let hints = self.index_hints.iter().flatten();
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for hint in hints {
            let namespace = (hint.database.as_str(), hint.collection.as_str());
            if seen.contains(&namespace) {
                return failed(
                    ErrorKind::Location(7_746_608),
                    format!(
                        "Collection '{}.{}' has already index hints specified",
                        hint.database, hint.collection
                    ),
                );
            }
            seen.push(namespace);
        }
        Ok(())
    }

    pub fn rejects(&self) -> bool {
        self.reject == Some(true)
    }

    /// The indexes of a collection that may be used, if it is said which.
    pub fn hints_for(&self, database: &str, collection: &str) -> Option<&IndexHints> {
        let mut hints = self.index_hints.iter().flatten();
        hints.find(|hint| hint.database == database && hint.collection == collection)
    }

    pub fn to_document(&self) -> RawDocumentBuf {
        let mut shown = RawDocumentBuf::new();
        if let Some(hints) = &self.index_hints {
            let hints: RawArrayBuf = hints.iter().map(IndexHints::to_document).collect();
            shown.append(cstr!("indexHints"), hints);
        }
        if let Some(framework) = &self.framework {
            shown.append(cstr!("queryFramework"), framework.as_str());
        }
        if let Some(reject) = self.reject {
            shown.append(cstr!("reject"), reject);
        }
        if let Some(comment) = &self.comment {
            shown.append(cstr!("comment"), comment.clone());
        }
        shown
    }
}

impl IndexHints {
    fn to_document(&self) -> RawDocumentBuf {
        let allowed: RawArrayBuf = self.allowed.iter().cloned().collect();
        rawdoc! {
            "ns": { "db": self.database.as_str(), "coll": self.collection.as_str() },
            "allowedIndexes": allowed,
        }
    }
}

fn owned(value: RawBsonRef<'_>) -> RawBson {
    value.into()
}

/// One collection's, or those of several.
fn hints(field: &str, value: RawBsonRef<'_>) -> Result<Vec<IndexHints>, QueryError> {
    match value {
        RawBsonRef::Document(one) => Ok(vec![of_collection(field, one)?]),
        RawBsonRef::Array(several) => items(several)
            .map(|item| match item.value() {
                RawBsonRef::Document(one) => of_collection(field, one),
                other => wrong_type(field, other, "type 'object'"),
            })
            .collect(),
        other => wrong_type(field, other, "types '[array, object]'"),
    }
}

fn of_collection(parser: &str, written: &RawDocument) -> Result<IndexHints, QueryError> {
    let required = |name: &str| {
        banyan_document::field(written, name).ok_or_else(|| {
            QueryError::new(
                ErrorKind::Location(40414),
                format!("BSON field '{parser}.{name}' is missing but a required field"),
            )
        })
    };
    let namespace = match required("ns")? {
        RawBsonRef::Document(namespace) => namespace,
        other => return wrong_type(&format!("{parser}.ns"), other, "type 'object'"),
    };
    let part = |name: &str, code: u32| match banyan_document::field(namespace, name) {
        Some(RawBsonRef::String(part)) => Ok(part.to_owned()),
        None | Some(RawBsonRef::Null) => failed(
            ErrorKind::Location(code),
            format!("invalid index hint: 'ns.{name}' field is missing"),
        ),
        Some(other) => wrong_type(&format!("{parser}.ns.{name}"), other, "type 'string'"),
    };
    let allowed = match required("allowedIndexes")? {
        RawBsonRef::Array(allowed) => allowed_indexes(parser, allowed)?,
        other => return wrong_type(&format!("{parser}.allowedIndexes"), other, "type 'array'"),
    };
    Ok(IndexHints {
        database: part("db", 8_727_500)?,
        collection: part("coll", 8_727_501)?,
        allowed,
    })
}

/// Names, and patterns; an empty pattern is none.
fn allowed_indexes(parser: &str, allowed: &RawArray) -> Result<Vec<RawBson>, QueryError> {
    let mut found = Vec::new();
    for item in items(allowed) {
        match item.value() {
            RawBsonRef::String(name) => found.push(RawBson::String(name.to_owned())),
            RawBsonRef::Document(pattern) if pattern.is_empty() => {}
            RawBsonRef::Document(pattern) => found.push(RawBson::Document(pattern.to_owned())),
            _ => {
                return failed(
                    ErrorKind::FailedToParse,
                    format!("{parser}.allowedIndexes: Hint must be a string or an object"),
                );
            }
        }
    }
    Ok(found)
}
