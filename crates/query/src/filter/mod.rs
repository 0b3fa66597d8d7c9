//! Filters: which documents a query is about.
//!
//! `parse.rs` turns a filter document into the tree below, with MongoDB's messages where it
//! cannot; `operator.rs` holds the operators of a field, `schema` is `$jsonSchema`. `normalise.rs` gives equal filters equal
//! trees, `rewrite.rs` derives predicates from `$expr`, `serialise.rs` writes a tree as MongoDB's
//! `explain` does. `matching.rs` runs it over raw documents. The tree is public: planners and
//! routers read it and never the filter's document (`crate::bounds`).
//!
//! A path reaches several values when arrays lie on it (`document::path`). A predicate holds for a
//! path when it holds for any of them; `$ne`, `$nin`, `$not` and `$exists: false` are a `Not`
//! around the path, and so hold when it holds for none.

mod bits;
mod divide;
mod equality;
mod matching;
mod normalise;
mod operator;
mod parse;
mod rewrite;
mod schema;
mod serialise;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::Collator;
use banyan_document::kind;
use banyan_document::path::Path;
use bson::spec::ElementType;
use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::javascript::JavaScript;
use crate::pattern::Pattern;
use crate::variables::Variables;

pub use crate::comparison::Comparison;
pub use bits::{BitTest, Bits};
pub(crate) use divide::{Divided, Part};
pub(crate) use operator::is_field_operator;
pub use schema::Schema;

/// A parsed filter.
#[derive(Clone, Debug)]
pub struct Filter {
    root: MatchNode,
    /// How strings are compared; without one, by their bytes.
    collator: Option<Collator>,
    /// What running it may use.
    budget: Budget,
}

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
    /// The array as a whole, like the two below.
    Size(i64),
    /// Some document in the array matches.
    ElemMatchObject(Box<MatchNode>),
    /// Some item of the array matches; the paths inside are empty and mean the item.
    ElemMatchValue(Box<MatchNode>),
}

/// The types that `$type` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeSet {
    /// `number`: all four of them.
    pub numbers: bool,
    /// In the order of their codes, each once.
    pub types: Vec<ElementType>,
}

impl TypeSet {
    fn insert(&mut self, kind: ElementType) {
        let number = kind::number(kind);
        let place = self
            .types
            .binary_search_by_key(&number, |known| kind::number(*known));
        if let Err(place) = place {
            self.types.insert(place, kind);
        }
    }

    pub fn contains(&self, kind: ElementType) -> bool {
        use ElementType::{Decimal128, Double, Int32, Int64};
        (self.numbers && matches!(kind, Double | Int32 | Int64 | Decimal128))
            || self.types.contains(&kind)
    }

    /// Whether every type of this set is in the other.
    pub(crate) fn is_within(&self, other: &TypeSet) -> bool {
        (!self.numbers || other.numbers) && self.types.iter().all(|kind| other.contains(*kind))
    }
}

/// The place of the item in an array that made a document match: what `$` stands for in updates and
/// projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayPosition(pub usize);

#[derive(Clone, Debug)]
pub struct Where {
    pub code: String,
    pub scope: Option<RawDocumentBuf>,
    engine: Arc<dyn JavaScript>,
}

impl Filter {
    pub fn parse(filter: &RawDocument, context: &Context) -> Result<Filter, QueryError> {
        let root = parse::Parser::new(context).document(filter)?;
        Filter::of(root, context.collator.clone(), &context.budget)
    }

    /// The filter that every document matches.
    pub fn all() -> Filter {
        Filter::all_in(None)
    }

    /// The filter that every document matches, of a query with this collation.
    pub fn all_in(collator: Option<Collator>) -> Filter {
        Filter {
            root: MatchNode::And(Vec::new()),
            collator,
            budget: Budget::unlimited(),
        }
    }

    /// What all of the filters match, which have this collation.
    pub fn conjunction<'a>(
        filters: impl IntoIterator<Item = &'a Filter>,
        collator: Option<Collator>,
        budget: &Budget,
    ) -> Result<Filter, QueryError> {
        let children = filters.into_iter().map(|filter| filter.root.clone());
        Filter::of(MatchNode::And(children.collect()), collator, budget)
    }

    fn of(
        root: MatchNode,
        collator: Option<Collator>,
        budget: &Budget,
    ) -> Result<Filter, QueryError> {
        Ok(Filter {
            root: normalise::normalise(root, collator.as_ref(), budget)?,
            collator,
            budget: budget.clone(),
        })
    }

    /// How its strings are compared; `None`: by their bytes.
    pub fn collator(&self) -> Option<&Collator> {
        self.collator.as_ref()
    }

    /// Whether the document matches. Evaluating fails where an expression, a script or a pattern
    /// does: that is the statement's failure, never a document that does not match.
    pub fn try_matches(&self, document: &RawDocument) -> Result<bool, QueryError> {
        matching::matches(&self.root, document, None, self.collator(), &self.budget)
    }

    /// Where in an array the document matched, if it matched in one.
    pub fn matches_with_position(
        &self,
        document: &RawDocument,
    ) -> Result<Option<ArrayPosition>, QueryError> {
        let mut position = None;
        let matched = matching::matches(
            &self.root,
            document,
            Some(&mut position),
            self.collator(),
            &self.budget,
        )?;
        Ok(position.filter(|_| matched).map(ArrayPosition))
    }

    /// The filter with these values for the variables of the `$lookup` stages around it.
    pub fn bind(&self, outer: &Variables) -> Filter {
        Filter {
            root: bind(&self.root, outer),
            collator: self.collator.clone(),
            budget: self.budget.clone(),
        }
    }

    /// The expressions that have to be true for a document to match.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        let nodes = match &self.root {
            MatchNode::And(children) => children,
            other => std::slice::from_ref(other),
        };
        nodes.iter().filter_map(|node| match node {
            MatchNode::Expression { expression, .. } => Some(&**expression),
            _ => None,
        })
    }

    /// Adds the paths that it looks at; false if it may look at anything.
    pub fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        dependencies(&self.root, paths)
    }

    /// Whether it evaluates an expression or a script, which only the context it was parsed in
    /// gives a meaning.
    pub fn computes(&self) -> bool {
        computes(&self.root)
    }

    /// What has to hold at once.
    pub fn conjuncts(&self) -> &[MatchNode] {
        match &self.root {
            MatchNode::And(children) => children,
            MatchNode::AlwaysTrue => &[],
            other => std::slice::from_ref(other),
        }
    }

    /// Some of the conjuncts, by their numbers. `None` if it is none of them.
    pub fn part(&self, wanted: impl Fn(usize, &MatchNode) -> bool) -> Option<Filter> {
        let numbered = self.conjuncts().iter().enumerate();
        let wanted = numbered.filter(|(number, node)| wanted(*number, node));
        let mut nodes: Vec<MatchNode> = wanted.map(|(_, node)| node.clone()).collect();
        let root = match nodes.len() {
            0 => return None,
            1 => nodes.remove(0),
            _ => MatchNode::And(nodes),
        };
        Some(Filter {
            root,
            collator: self.collator.clone(),
            budget: self.budget.clone(),
        })
    }

    pub fn root(&self) -> &MatchNode {
        &self.root
    }

    /// The filter as MongoDB's `explain` writes it: `{a: {$eq: 1}}`.
    pub fn to_document(&self) -> RawDocumentBuf {
        serialise::node(&self.root)
    }

    /// Whether every document matches.
    pub fn is_empty(&self) -> bool {
        self.root.is_trivially_true()
    }

    /// Whether a partial index may have this filter: every member finds the same answer, at any
    /// time and for every document.
    pub fn suits_an_index(&self) -> bool {
        suits_an_index(&self.root)
    }

    /// The paths that a matching document is known to have one value at, from `$eq` (and `$in` or
    /// `$all` of one) joined by `$and`. The same path may come twice.
    pub fn equalities(&self) -> Vec<(&Path, RawBsonRef<'_>)> {
        let mut found = Vec::new();
        collect_equalities(&self.root, &mut found);
        found
    }

    /// The value that a filter of nothing but `{_id: value}` asks for.
    pub fn id_equality(&self) -> Option<RawBsonRef<'_>> {
        match &self.root {
            MatchNode::Path {
                path,
                predicate: Predicate::Compare(Comparison::Eq, value),
            } if path.parts().len() == 1 && path.head() == "_id" => Some(value.as_raw_bson_ref()),
            _ => None,
        }
    }
}

/// Which items of an array an `$elemMatch` asks for.
#[derive(Clone, Debug)]
pub(crate) struct ItemFilter {
    node: MatchNode,
    /// How strings are compared; without one, by their bytes.
    collator: Option<Collator>,
    /// What running it may use.
    budget: Budget,
}

/// Parses `{$elemMatch: ...}` for use on the items of an array.
pub(crate) fn element_matcher(
    document: &RawDocument,
    context: &Context,
) -> Result<ItemFilter, QueryError> {
    let mut children = Vec::new();
    parse::Parser::new(context)
        .nested()
        .operators(&Path::field(""), document, &mut children)?;
    let collator = context.collator.clone();
    Ok(ItemFilter {
        node: normalise::normalise(MatchNode::And(children), collator.as_ref(), &context.budget)?,
        collator,
        budget: context.budget.clone(),
    })
}

impl ItemFilter {
    pub fn matches(&self, item: RawBsonRef<'_>) -> Result<bool, QueryError> {
        matching::item_matches(&self.node, item, self.collator.as_ref(), &self.budget)
    }
}

impl MatchNode {
    fn is_trivially_true(&self) -> bool {
        match self {
            MatchNode::And(children) => children.is_empty(),
            MatchNode::AlwaysTrue => true,
            _ => false,
        }
    }
}

impl MatchNode {
    /// Adds the paths that it looks at; false if it may look at anything.
    pub fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        dependencies(self, paths)
    }

    /// Whether it evaluates an expression or a script, which may fail.
    pub fn computes(&self) -> bool {
        computes(self)
    }
}

fn bind(node: &MatchNode, outer: &Variables) -> MatchNode {
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
        | MatchNode::AlwaysTrue
        | MatchNode::AlwaysFalse => node.clone(),
    }
}

fn dependencies(node: &MatchNode, paths: &mut BTreeSet<String>) -> bool {
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
        MatchNode::Where(_) | MatchNode::Schema { .. } => false,
        MatchNode::AlwaysTrue | MatchNode::AlwaysFalse => true,
    }
}

fn computes(node: &MatchNode) -> bool {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => {
            children.iter().any(computes)
        }
        MatchNode::Not(child) => computes(child),
        MatchNode::Expression { .. } | MatchNode::Where(_) => true,
        MatchNode::Path { .. }
        | MatchNode::Schema { .. }
        | MatchNode::AlwaysTrue
        | MatchNode::AlwaysFalse => false,
    }
}

fn suits_an_index(node: &MatchNode) -> bool {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) => children.iter().all(suits_an_index),
        MatchNode::Path { predicate, .. } => match predicate {
            Predicate::Compare(..) | Predicate::Exists | Predicate::Type(_) => true,
            Predicate::In { patterns, .. } => patterns.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

fn collect_equalities<'a>(node: &'a MatchNode, found: &mut Vec<(&'a Path, RawBsonRef<'a>)>) {
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
