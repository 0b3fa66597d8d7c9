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
        Ok(and(children))
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
            "and" => and(self.branches(element)?),
            "or" => match self.branches(element)? {
                mut only if only.len() == 1 => only.remove(0),
                many => Node::Or(many),
            },
            "nor" => Node::Nor(self.branches(element)?),
            "comment" => return Ok(None),
            "expr" => {
                self.require_top_level("$expr")?;
                Node::Expression(Box::new(Expression::parse(value, self.context)?))
            }
            "where" => self.javascript(value)?,
            "alwaysTrue" => {
                require_one("$alwaysTrue", value)?;
                Node::And(Vec::new())
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

/// A conjunction, flattened. Its children are in MongoDB's canonical order, on which the position
/// that `$` stands for depends: the last path that matched inside an array decides it.
pub(super) fn and(children: Vec<Node>) -> Node {
    let mut flat = Vec::with_capacity(children.len());
    for child in children {
        match child {
            Node::And(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    flat.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
    if flat.len() == 1 {
        flat.remove(0)
    } else {
        Node::And(flat)
    }
}

fn sort_key(node: &Node) -> (u8, Option<&Path>) {
    let (rank, path) = match node {
        Node::And(_) => (0, None),
        Node::Or(_) => (1, None),
        Node::Path { path, predicate } => (predicate_rank(predicate), Some(path)),
        Node::Not(inner) => match &**inner {
            Node::Path { path, .. } => (31, Some(path)),
            _ => (31, None),
        },
        Node::Nor(_) => (32, None),
        Node::Expression(_) => (33, None),
        Node::Where(_) => (34, None),
        Node::AlwaysFalse => (35, None),
    };
    (rank, path)
}

fn predicate_rank(predicate: &Predicate) -> u8 {
    match predicate {
        Predicate::ElemMatchObject(_) => 2,
        Predicate::ElemMatchValue(_) => 3,
        Predicate::Size(_) => 4,
        Predicate::Compare(Comparison::Eq, _) => 5,
        Predicate::Compare(Comparison::Lte, _) => 6,
        Predicate::Compare(Comparison::Lt, _) => 7,
        Predicate::Compare(Comparison::Gt, _) => 8,
        Predicate::Compare(Comparison::Gte, _) => 9,
        Predicate::Regex(_) => 10,
        Predicate::Mod { .. } => 11,
        Predicate::Exists => 12,
        Predicate::In { .. } => 13,
        Predicate::Bits(_) => 14,
        Predicate::Type(_) => 15,
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
