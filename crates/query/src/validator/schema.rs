//! A schema rule by rule, as it was written: `schema_parse.rs` reads it, `schema_explain.rs` says which
//! of its rules a value does not follow.

use banyan_document::path::Path;
use bson::{RawBsonRef, RawDocumentBuf, cstr};

use super::keyword::Keyword;
use crate::budget::Budget;
use crate::error::QueryError;
use crate::filter::Schema;

#[derive(Debug)]
pub(super) struct SchemaNode {
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    pub(super) source: RawDocumentBuf,
    pub(super) schema: Schema,
    /// It is about whole documents, and asks for something else.
    pub(super) is_never: bool,
    pub(super) rules: Vec<Rule>,
    pub(super) budget: Budget,
}

#[derive(Debug)]
pub(super) enum Rule {
    Keyword {
        keyword: &'static Keyword,
        specified_as: RawDocumentBuf,
        schema: Schema,
    },
    /// Nothing follows it; what is told then.
    Never(RawDocumentBuf),
    UniqueItems {
        specified_as: RawDocumentBuf,
    },
    Items(Box<SchemaNode>),
    ItemsByPlace(Vec<SchemaNode>),
    /// Of items from a place on.
    OtherItems(usize, Rest),
    Properties(Vec<(String, Path, SchemaNode)>),
    OtherProperties {
        named: Vec<String>,
        /// The patterns of names, as schemas of strings.
        patterns: Vec<Schema>,
        rest: Rest,
    },
    PatternProperties(Vec<(String, Schema, SchemaNode)>),
    Required {
        specified_as: RawDocumentBuf,
        names: Vec<(String, Schema)>,
    },
    Dependencies(Vec<Dependency>),
    /// `allOf`, `anyOf`
    Schemas(&'static str, Vec<SchemaNode>),
    OneOf(Vec<SchemaNode>),
    Not(Schema),
}

/// What is asked of those that are not named.
#[derive(Debug)]
pub(super) enum Rest {
    None,
    Like(Box<SchemaNode>),
}

#[derive(Debug)]
pub(super) struct Dependency {
    pub(super) property: String,
    pub(super) is_there: Schema,
    pub(super) needs: Needs,
}

#[derive(Debug)]
pub(super) enum Needs {
    Properties(Vec<(String, Schema)>),
    Schema(Box<SchemaNode>),
}

impl SchemaNode {
    pub fn accepts(&self, value: RawBsonRef<'_>) -> Result<bool, QueryError> {
        self.schema.accepts(value, &self.budget)
    }

    pub fn append_names(&self, out: &mut RawDocumentBuf) {
        if let Some(title) = &self.title {
            out.append(cstr!("title"), title.as_str());
        }
        if let Some(description) = &self.description {
            out.append(cstr!("description"), description.as_str());
        }
    }
}
