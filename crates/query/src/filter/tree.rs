//! The tree of a filter: what planners and routers read.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef, RawDocumentBuf};

use super::bits::Bits;
use super::geo::{Geo, GeoNear};
use super::schema::Schema;
use super::type_set::TypeSet;
use crate::comparison::Comparison;
use crate::expression::Expression;
use crate::javascript::Script;
use crate::pattern::Pattern;
use crate::text::TextQuery;
use crate::variables::Variables;

#[derive(Clone, Debug)]
pub enum MatchNode {
    /// Without children: everything matches.
    And(Vec<MatchNode>),
    Or(Vec<MatchNode>),
    Nor(Vec<MatchNode>),
    Not(Box<MatchNode>),
    Path {
        path: Path,
        predicate: Predicate,
    },
    Expression {
        expression: Box<Expression>,
        /// As it was written.
        source: RawBson,
    },
    Where(Where),
    Schema {
        schema: Box<Schema>,
        /// As it was written.
        source: RawDocumentBuf,
    },
    /// `$text`
    Text(Box<TextQuery>),
    AlwaysTrue,
    AlwaysFalse,
}

/// What is asked of a value at a path.
#[derive(Clone, Debug)]
pub enum Predicate {
    /// `$eq` and the ranges.
    Compare(Comparison, RawBson),
    /// What a comparison in the `$expr` beside it implies: in the order of all values, a missing
    /// field below null, arrays as a whole. Only planners need it.
    ExprCompare(Comparison, RawBson),
    /// The least or the greatest value of a bucket: compared as in an `$expr`, and whatever is or lies in
    /// an array meets it.
    Extreme(Comparison, RawBson),
    /// `$in`: one of the values (sorted, each once) or a match of one of the patterns.
    In {
        values: Vec<RawBson>,
        patterns: Vec<Pattern>,
    },
    Regex(Pattern),
    Exists,
    Type(TypeSet),
    Mod {
        divisor: i64,
        remainder: i64,
    },
    Bits(Bits),
    Geo(Geo),
    /// Some measurement of a bucket meets it: the path is that of a column, and goes on in each value.
    InBucket(Geo),
    /// Every document meets it: what it says is in which order documents are found.
    Near(Box<GeoNear>),
    /// The array as a whole, like the two below.
    Size(i64),
    /// Some document in the array matches.
    ElemMatchObject(Box<MatchNode>),
    /// Some item of the array matches; the paths inside are empty and mean the item.
    ElemMatchValue(Box<MatchNode>),
}

/// The place of the item in an array that made a document match: what `$` stands for in updates and
/// projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayPosition(pub usize);

#[derive(Clone, Debug)]
pub struct Where(pub(super) Arc<Script>);

impl MatchNode {
    pub(super) fn is_trivially_true(&self) -> bool {
        match self {
            MatchNode::And(children) => children.is_empty(),
            MatchNode::AlwaysTrue => true,
            _ => false,
        }
    }

    /// Adds the paths that it looks at; false if it may look at anything.
    pub fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        dependencies(self, paths)
    }

    /// Whether it evaluates an expression or a script, which may fail.
    pub fn computes(&self) -> bool {
        computes(self)
    }
}

pub(super) fn bind(node: &MatchNode, outer: &Variables) -> MatchNode {
    let each = |children: &[MatchNode]| children.iter().map(|child| bind(child, outer)).collect();
    match node {
        MatchNode::And(children) => MatchNode::And(each(children)),
        MatchNode::Or(children) => MatchNode::Or(each(children)),
        MatchNode::Nor(children) => MatchNode::Nor(each(children)),
        MatchNode::Not(child) => MatchNode::Not(Box::new(bind(child, outer))),
        MatchNode::Expression { expression, source } => MatchNode::Expression {
            expression: Box::new(expression.bind(outer)),
            source: source.clone(),
        },
        MatchNode::Path { .. }
        | MatchNode::Where(_)
        | MatchNode::Schema { .. }
        | MatchNode::Text(_)
        | MatchNode::AlwaysTrue
        | MatchNode::AlwaysFalse => node.clone(),
    }
}

pub(super) fn dependencies(node: &MatchNode, paths: &mut BTreeSet<String>) -> bool {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            let mut each = children.iter();
            each.all(|child| dependencies(child, paths))
        }
        MatchNode::Not(child) => dependencies(child, paths),
        MatchNode::Path { path, .. } => {
            paths.insert(path.to_string());
            true
        }
        MatchNode::Expression { expression, .. } => expression.dependencies(paths),
        // The whole document.
        MatchNode::Where(_) | MatchNode::Schema { .. } | MatchNode::Text(_) => false,
        MatchNode::AlwaysTrue | MatchNode::AlwaysFalse => true,
    }
}

pub(super) fn may_move(node: &MatchNode) -> bool {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            children.iter().all(may_move)
        }
        MatchNode::Not(child) => may_move(child),
        MatchNode::Expression { expression, .. } => !expression.is_random(),
        MatchNode::AlwaysFalse => false,
        MatchNode::Path { .. }
        | MatchNode::Where(_)
        | MatchNode::Schema { .. }
        | MatchNode::Text(_)
        | MatchNode::AlwaysTrue => true,
    }
}

pub(super) fn computes(node: &MatchNode) -> bool {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            children.iter().any(computes)
        }
        MatchNode::Not(child) => computes(child),
        MatchNode::Expression { .. } | MatchNode::Where(_) => true,
        MatchNode::Path { .. }
        | MatchNode::Schema { .. }
        | MatchNode::Text(_)
        | MatchNode::AlwaysTrue
        | MatchNode::AlwaysFalse => false,
    }
}

pub(super) fn calls_script(node: &MatchNode) -> bool {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            children.iter().any(calls_script)
        }
        MatchNode::Not(child) => calls_script(child),
        MatchNode::Expression { expression, .. } => expression.calls_script(),
        MatchNode::Where(_) => true,
        MatchNode::Path { .. }
        | MatchNode::Schema { .. }
        | MatchNode::Text(_)
        | MatchNode::AlwaysTrue
        | MatchNode::AlwaysFalse => false,
    }
}

/// How often it asks for what is near.
pub(super) fn count_near(node: &MatchNode) -> usize {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            children.iter().map(count_near).sum()
        }
        MatchNode::Not(child) => count_near(child),
        MatchNode::Path { predicate, .. } => match predicate {
            Predicate::Near(_) => 1,
            Predicate::ElemMatchObject(inner) | Predicate::ElemMatchValue(inner) => {
                count_near(inner)
            }
            _ => 0,
        },
        MatchNode::Expression { .. }
        | MatchNode::Where(_)
        | MatchNode::Schema { .. }
        | MatchNode::Text(_)
        | MatchNode::AlwaysTrue
        | MatchNode::AlwaysFalse => 0,
    }
}

pub(super) fn suits_an_index(node: &MatchNode) -> bool {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) => children.iter().all(suits_an_index),
        // A branch without conditions.
        MatchNode::AlwaysTrue => true,
        MatchNode::Path { predicate, .. } => match predicate {
            Predicate::Compare(..)
            | Predicate::Extreme(..)
            | Predicate::Exists
            | Predicate::Type(_)
            | Predicate::Geo(_)
            | Predicate::InBucket(_) => true,
            Predicate::In { patterns, .. } => patterns.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

pub(super) fn collect_equalities<'a>(
    node: &'a MatchNode,
    found: &mut Vec<(&'a Path, RawBsonRef<'a>)>,
) {
    match node {
        MatchNode::And(children) => {
            for child in children {
                collect_equalities(child, found);
            }
        }
        MatchNode::Path {
            path,
            predicate: Predicate::Compare(Comparison::Eq, value),
        } => {
            found.push((path, value.as_raw_bson_ref()));
        }
        _ => {}
    }
}

/// Adds the searches below a node.
pub(super) fn searches<'f>(node: &'f MatchNode, found: &mut Vec<&'f TextQuery>) {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            children.iter().for_each(|child| searches(child, found));
        }
        MatchNode::Not(child) => searches(child, found),
        MatchNode::Text(query) => found.push(query),
        _ => {}
    }
}
