//! Dividing a filter by its conjuncts: those whose paths are known elsewhere, under other names.

use banyan_document::Collator;
use banyan_document::path::Path;
use bson::RawDocumentBuf;

use super::tree::{MatchNode, Predicate};
use super::{Filter, serialise};
use crate::budget::Budget;
use crate::error::QueryError;

/// The path at which a condition is asked elsewhere, if it can be.
type Rename<'r> = dyn FnMut(&Path, &Predicate) -> Option<Path> + 'r;

impl Filter {
    /// The conjuncts of which all paths are renamed, and those that are left, both under this
    /// filter's collation; `None` if none is.
    pub(crate) fn divide(
        &self,
        rename: &mut Rename<'_>,
        budget: &Budget,
    ) -> Result<Option<Divided>, QueryError> {
        let conjuncts = match &self.root {
            MatchNode::And(children) => children.as_slice(),
            other => std::slice::from_ref(other),
        };
        let (mut moved, mut left) = (Vec::new(), Vec::new());
        for node in conjuncts {
            budget.spend_part()?;
            match (renamed(node, rename), implied(node)) {
                (Some(node), _) => moved.push(node),
                // It is derived anew from the `$expr` beside it.
                (None, Implied::Wholly) => {}
                // Only the context that it was parsed in can write it down.
                (None, Implied::Partly) => return Ok(None),
                (None, Implied::Nowhere) => left.push(node.clone()),
            }
        }
        if moved.is_empty() {
            return Ok(None);
        }
        let left = match left.is_empty() {
            true => None,
            false => Some(Part::of(left, self.collator(), budget)?),
        };
        let moved = Part::of(moved, self.collator(), budget)?;
        Ok(Some(Divided { moved, left }))
    }
}

/// The two parts of a filter.
pub(crate) struct Divided {
    pub moved: Part,
    pub left: Option<Part>,
}

pub(crate) struct Part {
    pub filter: Filter,
    /// What the filter is parsed from.
    pub source: RawDocumentBuf,
}

impl Part {
    pub(super) fn of(
        mut conjuncts: Vec<MatchNode>,
        collator: Option<&Collator>,
        budget: &Budget,
    ) -> Result<Part, QueryError> {
        let node = match conjuncts.len() {
            1 => conjuncts.remove(0),
            _ => MatchNode::And(conjuncts),
        };
        Ok(Part {
            // What an `$expr` implies is added after this, and is not to be written.
            source: serialise::node(&node),
            filter: Filter::of(node, collator.cloned(), budget)?,
        })
    }
}

fn renamed(node: &MatchNode, rename: &mut Rename<'_>) -> Option<MatchNode> {
    let mut each = |children: &[MatchNode]| {
        let children = children.iter().map(|child| renamed(child, rename));
        children.collect::<Option<Vec<_>>>()
    };
    Some(match node {
        MatchNode::And(children) => MatchNode::And(each(children)?),
        MatchNode::Or(children) => MatchNode::Or(each(children)?),
        MatchNode::Nor(children) => MatchNode::Nor(each(children)?),
        MatchNode::Not(child) => MatchNode::Not(Box::new(renamed(child, rename)?)),
        MatchNode::Path {
            predicate: Predicate::ExprCompare(..),
            ..
        } => return None,
        MatchNode::Path { path, predicate } => MatchNode::Path {
            path: rename(path, predicate)?,
            predicate: predicate.clone(),
        },
        MatchNode::AlwaysTrue => MatchNode::AlwaysTrue,
        MatchNode::Expression { expression, .. } if expression.is_constant() => node.clone(),
        // What is never true keeps its place.
        MatchNode::AlwaysFalse
        | MatchNode::Expression { .. }
        | MatchNode::Where(_)
        | MatchNode::Schema { .. }
        | MatchNode::Text(_) => return None,
    })
}

/// How much of a node an `$expr` beside it implies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Implied {
    Nowhere,
    Partly,
    Wholly,
}

fn implied(node: &MatchNode) -> Implied {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            let mut parts = children.iter().map(implied);
            let first = parts.next().unwrap_or(Implied::Nowhere);
            match parts.all(|part| part == first) {
                true => first,
                false => Implied::Partly,
            }
        }
        MatchNode::Not(child) => implied(child),
        MatchNode::Path {
            predicate: Predicate::ExprCompare(..),
            ..
        } => Implied::Wholly,
        // A scope is not written.
        MatchNode::Where(_) => Implied::Partly,
        _ => Implied::Nowhere,
    }
}
