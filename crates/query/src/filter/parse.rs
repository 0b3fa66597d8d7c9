//! From a filter document to the tree.

use std::rc::Rc;
use std::sync::Arc;

use banyan_document::element::{Element, elements, items};
use banyan_document::number::Number;
use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef, RawDocument};

use super::{Comparison, Node, Predicate, Where};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::pattern::Compiler;

pub(super) struct Parser<'c> {
    context: &'c Context,
    /// `$expr` and `$where` see whole documents only: not below `$elemMatch`.
    top_level: bool,
    pub(super) patterns: Rc<Compiler>,
}

pub(super) fn bad(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::BadValue, message)
}

impl<'c> Parser<'c> {
    pub(super) fn new(context: &'c Context) -> Parser<'c> {
        Parser {
            context,
            top_level: true,
            patterns: Rc::default(),
        }
    }

    /// For filters over the items of an array.
    pub(super) fn nested(&self) -> Parser<'c> {
        Parser {
            context: self.context,
            top_level: false,
            patterns: Rc::clone(&self.patterns),
        }
    }

    pub(super) fn document(&self, filter: &RawDocument) -> Result<Node, QueryError> {
        let mut children = Vec::new();
        for element in elements(filter) {
            match element.name().strip_prefix('$') {
                Some(operator) => children.extend(self.logical(operator, &element)?),
                None => self.field(element.name(), element.value(), &mut children)?,
            }
        }
        Ok(match children.len() {
            1 => children.remove(0),
            _ => Node::And(children),
        })
    }

    /// One `path: condition`.
    fn field(
        &self,
        name: &str,
        value: RawBsonRef<'_>,
        children: &mut Vec<Node>,
    ) -> Result<(), QueryError> {
        let path = parse_path(name)?;
        if let RawBsonRef::Document(document) = value
            && is_operators(document, false)
        {
            return self.operators(&path, document, children);
        }
        let predicate = match value {
            RawBsonRef::RegularExpression(regex) => {
                let (pattern, options) = (regex.pattern.as_str(), regex.options.as_str());
                Predicate::Regex(self.patterns.compile(pattern, options)?)
            }
            other => equality(other)?,
        };
        children.push(Node::Path { path, predicate });
        Ok(())
    }

    fn logical(&self, operator: &str, element: &Element<'_>) -> Result<Option<Node>, QueryError> {
        let value = element.value();
        Ok(Some(match operator {
            "and" => Node::And(self.branches(element)?),
            "or" => Node::Or(self.branches(element)?),
            "nor" => Node::Nor(self.branches(element)?),
            "comment" => return Ok(None),
            "expr" => {
                self.require_top_level("$expr")?;
                Node::Expression {
                    expression: Box::new(Expression::parse(value, self.context)?),
                    source: value.into(),
                }
            }
            "where" => self.javascript(value)?,
            "alwaysTrue" => {
                require_one("$alwaysTrue", value)?;
                Node::AlwaysTrue
            }
            "alwaysFalse" => {
                require_one("$alwaysFalse", value)?;
                Node::AlwaysFalse
            }
            "text" | "jsonSchema" | "sampleRate" => {
                let message = format!("${operator} is not supported");
                return Err(QueryError::new(ErrorKind::NotImplemented, message));
            }
            "not" => {
                return Err(bad(
                    "unknown top level operator: $not. If you are trying to negate an entire \
                     expression, use $nor.",
                ));
            }
            _ => {
                return Err(bad(format!(
                    "unknown top level operator: ${operator}. If you have a field name that \
                     starts with a '$' symbol, consider using $getField or $setField."
                )));
            }
        }))
    }

    fn branches(&self, element: &Element<'_>) -> Result<Vec<Node>, QueryError> {
        let RawBsonRef::Array(array) = element.value() else {
            return Err(bad(format!("{} must be an array", element.name())));
        };
        if array.is_empty() {
            return Err(bad("$and/$or/$nor must be a nonempty array"));
        }
        items(array)
            .map(|item| match item.value() {
                RawBsonRef::Document(document) => self.document(document),
                _ => Err(bad("$or/$and/$nor entries need to be full objects")),
            })
            .collect()
    }

    fn javascript(&self, value: RawBsonRef<'_>) -> Result<Node, QueryError> {
        self.require_top_level("$where")?;
        let (code, scope) = match value {
            RawBsonRef::String(code) | RawBsonRef::JavaScriptCode(code) => (code, None),
            RawBsonRef::JavaScriptCodeWithScope(code) => (code.code, Some(code.scope.to_owned())),
            _ => return Err(bad("$where got bad type")),
        };
        let Some(engine) = &self.context.javascript else {
            return Err(bad("no globalScriptEngine in $where parsing"));
        };
        Ok(Node::Where(Where {
            code: code.to_string(),
            scope,
            engine: Arc::clone(engine),
        }))
    }

    fn require_top_level(&self, operator: &str) -> Result<(), QueryError> {
        if self.top_level {
            return Ok(());
        }
        Err(bad(format!(
            "{operator} can only be applied to the top-level document"
        )))
    }
}

/// Whether a document holds operators (its first name starts with `$`) rather than being a value.
/// References (`{$ref, $id}`) are values.
pub(crate) fn is_operators(document: &RawDocument, partial_references: bool) -> bool {
    let Some(first) = elements(document).next() else {
        return false;
    };
    first.name().starts_with('$') && !is_reference(document, partial_references)
}

fn is_reference(document: &RawDocument, partial: bool) -> bool {
    let (mut collection, mut id, mut database) = (false, false, false);
    for element in elements(document) {
        match element.name() {
            "$ref" => collection |= matches!(element.value(), RawBsonRef::String(_)),
            "$id" => id = true,
            "$db" => database |= matches!(element.value(), RawBsonRef::String(_)),
            _ => {}
        }
    }
    if partial {
        collection || id || database
    } else {
        collection && id
    }
}

pub(super) fn equality(value: RawBsonRef<'_>) -> Result<Predicate, QueryError> {
    if matches!(value, RawBsonRef::Undefined) {
        return Err(bad("cannot compare to undefined"));
    }
    Ok(Predicate::Compare(Comparison::Eq, RawBson::from(value)))
}

/// Empty names are fields too.
fn parse_path(name: &str) -> Result<Path, QueryError> {
    if name.is_empty() {
        return Ok(Path::field(name));
    }
    Path::parse(name).map_err(|error| bad(error.to_string()))
}

fn require_one(operator: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
    if Number::from_raw(value).and_then(Number::to_i64_exact) == Some(1) {
        return Ok(());
    }
    let message = format!("{operator} must be an integer value of 1");
    Err(QueryError::new(ErrorKind::FailedToParse, message))
}
