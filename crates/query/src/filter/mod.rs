//! Filters: which documents a query is about.
//!
//! `parse.rs` turns a filter document into a tree (`tree.rs`), with MongoDB's messages where it
//! cannot; `operator.rs` holds the operators of a field, `schema` is `$jsonSchema`. `normalise.rs`
//! gives equal filters equal trees, `rewrite.rs` derives predicates from `$expr`, `serialise.rs`
//! writes a tree as MongoDB's `explain` does, `divide.rs` and `present.rs` take parts of one. `matching.rs` runs it over raw documents. The tree is
//! public: planners and routers read it and never the filter's document (`crate::bounds`).
//!
//! A path reaches several values when arrays lie on it (`document::path`). A predicate holds for a
//! path when it holds for any of them; `$ne`, `$nin`, `$not` and `$exists: false` are a `Not`
//! around the path, and so hold when it holds for none.

mod bits;
mod buckets;
mod divide;
mod equality;
mod geo;
mod matching;
mod normalise;
mod operator;
mod parse;
mod present;
mod rewrite;
mod schema;
mod serialise;
#[cfg(test)]
mod tests;
mod tree;
mod type_set;

use std::collections::BTreeSet;

use banyan_document::Collator;
use banyan_document::path::Path;
use banyan_text::Matcher;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::text::TextQuery;
use crate::variables::Variables;

pub use crate::comparison::Comparison;
pub use bits::{BitTest, Bits};
pub(crate) use buckets::column;
pub(crate) use divide::{Divided, Part};
pub(crate) use geo::is_shape;
pub use geo::{Geo, GeoNear, metered};
use normalise::Normaliser;
pub(crate) use operator::begins_with_operator;
pub use schema::Schema;
pub(crate) use schema::first_duplicate;
pub use tree::{ArrayPosition, MatchNode, Predicate, Where};
pub use type_set::TypeSet;

/// A parsed filter.
#[derive(Clone, Debug)]
pub struct Filter {
    root: MatchNode,
    /// How strings are compared; without one, by their bytes.
    collator: Option<Collator>,
    /// What running it may use.
    budget: Budget,
}

/// Whether a written filter has an `$expr`, beside fields or in branches.
pub(crate) fn has_expression(filter: &RawDocument) -> bool {
    parse::has_expression(filter)
}

impl Filter {
    pub fn parse(filter: &RawDocument, context: &Context) -> Result<Filter, QueryError> {
        let parse = || Filter::checked(parse::Parser::new(context).document(filter)?, context);
        context.folding.after_parsing(parse)
    }

    /// The filter with what `look` finds in it as it is written.
    pub(crate) fn parse_looking<T>(
        filter: &RawDocument,
        context: &Context,
        look: impl FnOnce(&MatchNode) -> Result<T, QueryError>,
    ) -> Result<(Filter, T), QueryError> {
        let parse = || {
            let written = parse::Parser::new(context).document(filter)?;
            let found = look(&written)?;
            Ok((Filter::checked(written, context)?, found))
        };
        context.folding.after_parsing(parse)
    }

    fn checked(root: MatchNode, context: &Context) -> Result<Filter, QueryError> {
        if context.text.is_some() {
            parse::check_searches(&root)?;
        }
        Filter::of(root, context.collator.clone(), &context.budget)
    }

    /// The filter of a query, which alone may ask for what is near and so for an order.
    pub fn of_query(filter: &RawDocument, context: &Context) -> Result<Filter, QueryError> {
        let parse = || Filter::checked(parse::Parser::of_query(context).document(filter)?, context);
        let filter = context.folding.after_parsing(parse)?;
        let is_top = filter.near().is_some();
        match tree::count_near(&filter.root) {
            0 => Ok(filter),
            _ if filter.searches() => Err(QueryError::bad_value(
                "text and geoNear not allowed in same query",
            )),
            1 if is_top => Ok(filter),
            1 => Err(QueryError::bad_value("geo $near must be top-level expr")),
            _ => Err(QueryError::bad_value("Too many geoNear expressions")),
        }
    }

    /// The filter of a query with its conditions in the order in which they are written.
    pub fn as_written(filter: &RawDocument, context: &Context) -> Result<Filter, QueryError> {
        let parse = || parse::Parser::of_query(context).document(filter);
        let root = context.folding.after_parsing(parse)?;
        let normaliser = Normaliser {
            collator: context.collator.as_ref(),
            budget: &context.budget,
            keeps_order: true,
        };
        Ok(Filter {
            root: normaliser.normalise(root)?,
            collator: context.collator.clone(),
            budget: context.budget.clone(),
        })
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

    pub(crate) fn of(
        root: MatchNode,
        collator: Option<Collator>,
        budget: &Budget,
    ) -> Result<Filter, QueryError> {
        let normaliser = Normaliser {
            collator: collator.as_ref(),
            budget,
            keeps_order: false,
        };
        Ok(Filter {
            root: normaliser.normalise(root)?,
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
            root: tree::bind(&self.root, outer),
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
        tree::dependencies(&self.root, paths)
    }

    /// Whether a stage of a pipeline may run it before another one that leaves alone what it looks
    /// at. A random choice is made of the documents of its place, and what is never true keeps it.
    pub(crate) fn may_move(&self) -> bool {
        tree::may_move(&self.root)
    }

    /// Whether it evaluates an expression or a script, which only the context it was parsed in
    /// gives a meaning.
    pub fn computes(&self) -> bool {
        tree::computes(&self.root)
    }

    /// Whether it calls a script.
    pub fn calls_script(&self) -> bool {
        tree::calls_script(&self.root)
    }

    /// Whether it searches in a text index.
    pub fn searches(&self) -> bool {
        let mut found = Vec::new();
        tree::searches(&self.root, &mut found);
        !found.is_empty()
    }

    /// The searches in it, wherever they are.
    pub fn matchers(&self) -> Vec<&Matcher> {
        let mut found = Vec::new();
        tree::searches(&self.root, &mut found);
        let matchers = found.into_iter();
        matchers
            .filter_map(|query| query.matcher.as_ref())
            .collect()
    }

    /// The search that every document has to match, and which of the conjuncts it is.
    pub fn search(&self) -> Option<(usize, &TextQuery)> {
        let mut numbered = self.conjuncts().iter().enumerate();
        numbered.find_map(|(number, node)| match node {
            MatchNode::Text(query) => Some((number, &**query)),
            _ => None,
        })
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

    /// The `$near` that orders what it finds, and its path.
    pub fn near(&self) -> Option<(&Path, &GeoNear)> {
        self.conjuncts().iter().find_map(|node| match node {
            MatchNode::Path {
                path,
                predicate: Predicate::Near(near),
            } => Some((path, &**near)),
            _ => None,
        })
    }

    /// Whether a partial index may have this filter: every member finds the same answer, at any
    /// time and for every document.
    pub fn suits_an_index(&self) -> bool {
        tree::suits_an_index(&self.root)
    }

    /// The paths that a matching document is known to have one value at, from `$eq` (and `$in` or
    /// `$all` of one) joined by `$and`. The same path may come twice.
    pub fn equalities(&self) -> Vec<(&Path, RawBsonRef<'_>)> {
        let mut found = Vec::new();
        tree::collect_equalities(&self.root, &mut found);
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

/// Whether the value of a field in a filter is a condition on the field, rather than what it equals.
pub(crate) fn is_condition(value: &RawDocument) -> bool {
    parse::is_operators(value, false)
}

/// The path that a field's name in a filter or a schema stands for.
pub(crate) fn path_of(name: &str) -> Result<Path, QueryError> {
    parse::parse_path(name)
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
    let normaliser = Normaliser {
        collator: context.collator.as_ref(),
        budget: &context.budget,
        keeps_order: false,
    };
    Ok(ItemFilter {
        node: normaliser.normalise(MatchNode::And(children))?,
        collator: context.collator.clone(),
        budget: context.budget.clone(),
    })
}

impl ItemFilter {
    pub fn matches(&self, item: RawBsonRef<'_>) -> Result<bool, QueryError> {
        matching::item_matches(&self.node, item, self.collator.as_ref(), &self.budget)
    }
}
