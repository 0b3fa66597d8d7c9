//! From a filter document to the tree.

use std::rc::Rc;
use std::sync::Arc;

use banyan_document::element::{Element, elements, items};
use banyan_document::number::Number;
use banyan_document::{MAX_STORED_DEPTH, Path, PathError};
use bson::{RawBson, RawBsonRef, RawDocument, rawdoc};

use super::buckets;
use super::tree::{self, MatchNode, Predicate, Where};
use crate::budget::Budget;
use crate::comparison::Comparison;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::javascript::{JavaScript, Script};
use crate::pattern::Compiler;
use crate::text::TextQuery;

/// What an operator without a path makes of its operand. `None`: nothing.
type Parse = fn(&Parser<'_>, &Element<'_>) -> Result<Option<MatchNode>, QueryError>;

/// The operators that stand without a path.
static PATHLESS: &[(&str, Parse)] = &[
    ("$and", |parser, element| {
        Ok(Some(MatchNode::And(parser.branches(element)?)))
    }),
    ("$or", |parser, element| {
        Ok(Some(MatchNode::Or(parser.branches(element)?)))
    }),
    ("$nor", |parser, element| {
        Ok(Some(MatchNode::Nor(parser.branches(element)?)))
    }),
    ("$comment", |_, _| Ok(None)),
    ("$expr", |parser, element| {
        parser.expression(element.value()).map(Some)
    }),
    ("$where", |parser, element| {
        parser.javascript(element.value()).map(Some)
    }),
    ("$alwaysTrue", |_, element| {
        require_one("$alwaysTrue", element.value())?;
        Ok(Some(MatchNode::AlwaysTrue))
    }),
    ("$alwaysFalse", |_, element| {
        require_one("$alwaysFalse", element.value())?;
        Ok(Some(MatchNode::AlwaysFalse))
    }),
    ("$jsonSchema", |parser, element| {
        parser.schema(element.value()).map(Some)
    }),
    ("$sampleRate", |parser, element| {
        parser.sample_rate(element.value()).map(Some)
    }),
    (buckets::GEO_WITHIN, |parser, element| {
        buckets::parse_within(element.value(), parser.budget()).map(Some)
    }),
    ("$text", |parser, element| {
        parser.search(element.value()).map(Some)
    }),
];

/// Whether it is a field of references (`{$ref, $id, $db}`), in whose documents it can be asked for.
fn is_of_reference(name: &str) -> bool {
    matches!(name, "$ref" | "$id" | "$db")
}

/// Whether an operator stands without a path.
pub(super) fn is_pathless(name: &str) -> bool {
    PATHLESS.iter().any(|(known, _)| *known == name)
}

/// Whether there is an `$expr` in it, beside fields or in branches.
pub(super) fn has_expression(filter: &RawDocument) -> bool {
    elements(filter).any(|element| match (element.name(), element.value()) {
        ("$expr", _) => true,
        ("$and" | "$or" | "$nor", RawBsonRef::Array(branches)) => {
            items(branches).any(|branch| match branch.value() {
                RawBsonRef::Document(branch) => has_expression(branch),
                _ => false,
            })
        }
        _ => false,
    })
}

pub(super) struct Parser<'c> {
    context: &'c Context,
    /// `$expr` and `$where` see whole documents only: not below `$elemMatch`.
    top_level: bool,
    /// Whether it may say in which order documents are found (`$near`).
    pub(super) may_order: bool,
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
            may_order: false,
            patterns: Rc::new(Compiler::new(context.budget.clone())),
        }
    }

    /// For the filter of a query of its own, which alone may have an order.
    pub(super) fn of_query(context: &'c Context) -> Parser<'c> {
        Parser {
            may_order: true,
            ..Parser::new(context)
        }
    }

    /// Counts a part of the filter.
    pub(super) fn spend(&self) -> Result<(), QueryError> {
        self.budget().spend_part()
    }

    pub(super) fn budget(&self) -> &'c Budget {
        &self.context.budget
    }

    /// For filters over the items of an array.
    pub(super) fn nested(&self) -> Parser<'c> {
        Parser {
            context: self.context,
            top_level: false,
            may_order: self.may_order,
            patterns: Rc::clone(&self.patterns),
        }
    }

    pub(super) fn document(&self, filter: &RawDocument) -> Result<MatchNode, QueryError> {
        let mut children = Vec::new();
        for element in elements(filter) {
            self.spend()?;
            let name = element.name();
            match name.starts_with('$') && !is_of_reference(name) {
                true => children.extend(self.logical(&element)?),
                false => self.field(name, element.value(), &mut children)?,
            }
        }
        Ok(match children.len() {
            1 => children.remove(0),
            _ => MatchNode::And(children),
        })
    }

    /// One `path: condition`.
    fn field(
        &self,
        name: &str,
        value: RawBsonRef<'_>,
        children: &mut Vec<MatchNode>,
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
        children.push(MatchNode::Path { path, predicate });
        Ok(())
    }

    fn logical(&self, element: &Element<'_>) -> Result<Option<MatchNode>, QueryError> {
        let name = element.name();
        match PATHLESS.iter().find(|(known, _)| *known == name) {
            Some((_, parse)) => parse(self, element),
            None if name == "$not" => Err(bad(
                "unknown top level operator: $not. If you are trying to negate an entire \
                 expression, use $nor.",
            )),
            None => Err(bad(format!(
                "unknown top level operator: {name}. If you have a field name that starts with a \
                 '$' symbol, consider using $getField or $setField."
            ))),
        }
    }

    fn branches(&self, element: &Element<'_>) -> Result<Vec<MatchNode>, QueryError> {
        let RawBsonRef::Array(array) = element.value() else {
            return Err(bad(format!("{} must be an array", element.name())));
        };
        if array.is_empty() {
            return Err(bad("$and/$or/$nor must be a nonempty array"));
        }
        items(array)
            .map(|item| match item.value() {
                RawBsonRef::Document(document) => {
                    self.spend()?;
                    self.document(document)
                }
                _ => Err(bad("$or/$and/$nor entries need to be full objects")),
            })
            .collect()
    }

    fn expression(&self, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        self.require_top_level("$expr")?;
        if self.context.is_upsert {
            let message = "$expr is not allowed in the query predicate for an upsert";
            return Err(QueryError::new(ErrorKind::QueryFeatureNotAllowed, message));
        }
        Ok(MatchNode::Expression {
            expression: Box::new(Expression::parse_rewritten(value, self.context)?),
            source: value.into(),
        })
    }

    /// A share of the documents: `$expr` with `$rand`.
    fn sample_rate(&self, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        let Some(rate) = Number::from_raw(value).map(Number::to_f64) else {
            return Err(bad("argument to $sampleRate must be a numeric type"));
        };
        if !(0.0..=1.0).contains(&rate) {
            return Err(bad("numeric argument to $sampleRate must be in [0, 1]"));
        }
        let expression = match rate {
            0.0 => rawdoc! { "$const": false },
            1.0 => rawdoc! { "$const": true },
            rate => rawdoc! { "$lt": [{ "$rand": {} }, { "$const": rate }] },
        };
        let value = RawBsonRef::Document(&expression);
        Ok(MatchNode::Expression {
            expression: Box::new(Expression::parse(value, self.context)?),
            source: value.into(),
        })
    }

    fn javascript(&self, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        self.require_top_level("$where")?;
        let (code, scope) = match value {
            RawBsonRef::String(code) | RawBsonRef::JavaScriptCode(code) => (code, None),
            RawBsonRef::JavaScriptCodeWithScope(code) => (code.code, Some(code.scope.to_owned())),
            _ => return Err(bad("$where got bad type")),
        };
        let engine = match &self.context.javascript {
            Some(engine) => Arc::clone(engine),
            None if self.context.runs_elsewhere => Arc::new(NoEngine),
            None => {
                return Err(QueryError::new(
                    ErrorKind::Location(6_108_304),
                    "no globalScriptEngine in $where parsing",
                ));
            }
        };
        Ok(MatchNode::Where(Where(Script::condition(
            code, scope, engine,
        ))))
    }

    fn search(&self, value: RawBsonRef<'_>) -> Result<MatchNode, QueryError> {
        self.require_top_level("$text")?;
        let Some(context) = &self.context.text else {
            return Err(bad("$text is not allowed in this context"));
        };
        let query = TextQuery::parse(value, context)?;
        Ok(MatchNode::Text(Box::new(query)))
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

/// There is one search at most, and none that must not match.
pub(super) fn check_searches(root: &MatchNode) -> Result<(), QueryError> {
    let mut found = Vec::new();
    tree::searches(root, &mut found);
    match found.len() {
        0 => return Ok(()),
        1 => {}
        _ => return Err(bad("Too many text expressions")),
    }
    fn is_negated(node: &MatchNode) -> bool {
        match node {
            MatchNode::And(children) | MatchNode::Or(children) => children.iter().any(is_negated),
            MatchNode::Nor(_) | MatchNode::Not(_) => {
                let mut found = Vec::new();
                tree::searches(node, &mut found);
                !found.is_empty()
            }
            _ => false,
        }
    }
    match is_negated(root) {
        true => Err(bad("text expression not allowed in nor")),
        false => Ok(()),
    }
}

/// Stands where a filter is only read.
#[derive(Debug)]
struct NoEngine;

impl JavaScript for NoEngine {
    fn run(&self, _: &RawDocument) -> Result<RawBson, QueryError> {
        Err(bad("no globalScriptEngine"))
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
pub(super) fn parse_path(name: &str) -> Result<Path, QueryError> {
    if name.is_empty() {
        return Ok(Path::field(name));
    }
    if name.bytes().filter(|byte| *byte == b'.').count() >= MAX_STORED_DEPTH {
        let message = PathError::TooLong.to_string();
        return Err(QueryError::new(ErrorKind::Location(5729100), message));
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
