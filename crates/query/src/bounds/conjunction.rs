//! Conditions on single paths that every matching document meets.

use std::borrow::Cow;

use banyan_document::Collator;
use banyan_document::path::Path;
use bson::RawBsonRef;

use crate::filter::{Comparison, Filter, MatchNode, Predicate};

/// Everything that has to hold at once.
#[derive(Debug, Default)]
pub struct Conjunction<'f> {
    pub conditions: Vec<Condition<'f>>,
    pub disjunctions: Vec<Disjunction<'f>>,
    /// Whether the conditions say all that the filter says.
    pub complete: bool,
    /// Whether nothing can match.
    pub never: bool,
    /// How the filter compares strings; without one, by their bytes.
    pub collator: Option<&'f Collator>,
    /// How many items of arrays the conditions speak of.
    items: usize,
}

/// A path of the filter, or one that was made of two.
type PathOf<'f> = Cow<'f, Path>;

/// An `$or`: one of its conjunctions holds.
#[derive(Debug)]
pub struct Disjunction<'f> {
    pub branches: Vec<Conjunction<'f>>,
    /// Which of the filter's conjuncts says this and nothing else ([`Filter::conjuncts`]).
    pub conjunct: Option<usize>,
}

/// What has to hold for a path: a predicate for one of its values or, negated, for none.
#[derive(Debug, Clone)]
pub struct Condition<'f> {
    pub path: PathOf<'f>,
    pub predicate: &'f Predicate,
    pub negated: bool,
    /// Conditions with the same number hold for the same item of an array (`$elemMatch`).
    pub item: Option<usize>,
    /// Which of the filter's conjuncts says this and nothing else ([`Filter::conjuncts`]).
    pub conjunct: Option<usize>,
}

impl<'f> Conjunction<'f> {
    pub fn of(filter: &'f Filter) -> Conjunction<'f> {
        Conjunction::of_node(filter.root(), None, filter.collator())
    }

    /// Of a filter that is not there.
    pub fn everything(collator: Option<&'f Collator>) -> Conjunction<'f> {
        Conjunction {
            complete: true,
            collator,
            ..Conjunction::default()
        }
    }

    fn of_node(
        node: &'f MatchNode,
        above: Option<&Path>,
        collator: Option<&'f Collator>,
    ) -> Conjunction<'f> {
        let mut conjunction = Conjunction::everything(collator);
        match node {
            MatchNode::And(children) => {
                for (number, child) in children.iter().enumerate() {
                    conjunction.take_conjunct(number, child, above);
                }
            }
            node => conjunction.take_conjunct(0, node, above),
        }
        conjunction
    }

    fn of_negation(
        node: &'f MatchNode,
        above: Option<&Path>,
        collator: Option<&'f Collator>,
    ) -> Conjunction<'f> {
        let mut conjunction = Conjunction::everything(collator);
        conjunction.take_negation(node, above);
        conjunction
    }

    fn take_conjunct(&mut self, number: usize, node: &'f MatchNode, above: Option<&Path>) {
        let (known, known_disjunctions) = (self.conditions.len(), self.disjunctions.len());
        self.take(node, above);
        if let [disjunction] = &mut self.disjunctions[known_disjunctions..]
            && matches!(node, MatchNode::Or(_))
        {
            disjunction.conjunct = Some(number);
        }
        let is_plain = match node {
            MatchNode::Path { .. } => true,
            MatchNode::Not(child) => matches!(**child, MatchNode::Path { .. }),
            _ => false,
        };
        if let [condition] = &mut self.conditions[known..]
            && is_plain
        {
            condition.conjunct = Some(number);
        }
    }

    /// Takes in a node over whole documents, or over those in the array at `above`.
    fn take(&mut self, node: &'f MatchNode, above: Option<&Path>) {
        let collator = self.collator;
        match node {
            MatchNode::And(children) => children.iter().for_each(|child| self.take(child, above)),
            MatchNode::Or(children) => {
                let branches = children.iter();
                self.take_branches(
                    branches.map(|child| Conjunction::of_node(child, above, collator)),
                );
            }
            MatchNode::Nor(children) => {
                children
                    .iter()
                    .for_each(|child| self.take_negation(child, above));
            }
            MatchNode::Not(child) => self.take_negation(child, above),
            MatchNode::Path { path, predicate } => self.take_path(joined(above, path), predicate),
            MatchNode::Expression { .. }
            | MatchNode::Where(_)
            | MatchNode::Schema { .. }
            | MatchNode::Text(_) => self.complete = false,
            MatchNode::AlwaysTrue => {}
            MatchNode::AlwaysFalse => self.never = true,
        }
    }

    fn take_negation(&mut self, node: &'f MatchNode, above: Option<&Path>) {
        let collator = self.collator;
        match node {
            MatchNode::And(children) => {
                let branches = children.iter();
                self.take_branches(
                    branches.map(|child| Conjunction::of_negation(child, above, collator)),
                );
            }
            MatchNode::Or(children) => {
                children
                    .iter()
                    .for_each(|child| self.take_negation(child, above));
            }
            MatchNode::Nor(children) => {
                let branches = children.iter();
                self.take_branches(
                    branches.map(|child| Conjunction::of_node(child, above, collator)),
                );
            }
            MatchNode::Not(child) => self.take(child, above),
            // It is weaker than the `$expr` beside it.
            MatchNode::Path {
                predicate: Predicate::ExprCompare(..),
                ..
            } => self.complete = false,
            MatchNode::Path { path, predicate } => self.conditions.push(Condition {
                path: joined(above, path),
                predicate,
                negated: true,
                item: None,
                conjunct: None,
            }),
            MatchNode::Expression { .. }
            | MatchNode::Where(_)
            | MatchNode::Schema { .. }
            | MatchNode::Text(_) => self.complete = false,
            MatchNode::AlwaysTrue => self.never = true,
            MatchNode::AlwaysFalse => {}
        }
    }

    fn take_branches(&mut self, branches: impl Iterator<Item = Conjunction<'f>>) {
        self.complete = false;
        let branches: Vec<_> = branches.filter(|branch| !branch.never).collect();
        self.never |= branches.is_empty();
        self.disjunctions.push(Disjunction {
            branches,
            conjunct: None,
        });
    }

    fn take_path(&mut self, path: PathOf<'f>, predicate: &'f Predicate) {
        match predicate {
            Predicate::ElemMatchObject(inner) => self.take(inner, Some(&path)),
            Predicate::ElemMatchValue(inner) => {
                self.items += 1;
                self.take_item(inner, &path, self.items);
            }
            // Expressions do not know positions in arrays.
            Predicate::ExprCompare(..) | Predicate::Extreme(..) if path.has_position() => {
                return;
            }
            _ => {}
        }
        self.conditions.push(Condition {
            path,
            predicate,
            negated: false,
            item: None,
            conjunct: None,
        });
    }

    /// Takes in a node over the items of the array at `path`.
    fn take_item(&mut self, node: &'f MatchNode, path: &PathOf<'f>, item: usize) {
        let mut push = |predicate, negated| {
            self.conditions.push(Condition {
                path: path.clone(),
                predicate,
                negated,
                item: Some(item),
                conjunct: None,
            });
        };
        match node {
            MatchNode::And(children) => {
                children
                    .iter()
                    .for_each(|child| self.take_item(child, path, item));
            }
            MatchNode::Path { predicate, .. } => match predicate {
                // What an item that is an array holds is in no key.
                Predicate::ElemMatchObject(_) | Predicate::ElemMatchValue(_) => {}
                _ => push(predicate, false),
            },
            MatchNode::Not(child) => {
                if let MatchNode::Path { predicate, .. } = &**child {
                    push(predicate, true);
                }
            }
            _ => {}
        }
    }
}

fn joined<'f>(above: Option<&Path>, path: &'f Path) -> PathOf<'f> {
    match above {
        Some(above) => Cow::Owned(above.join(path)),
        None => Cow::Borrowed(path),
    }
}

impl Condition<'_> {
    /// Whether the field is there in every document that matches. `arrays`: the path may lead
    /// through some.
    pub fn excludes_missing(&self, arrays: bool) -> bool {
        let null =
            |value: RawBsonRef<'_>| matches!(value, RawBsonRef::Null | RawBsonRef::Undefined);
        let end = |value: RawBsonRef<'_>| {
            null(value) || matches!(value, RawBsonRef::MinKey | RawBsonRef::MaxKey)
        };
        if self.negated {
            let takes_null = match self.predicate {
                Predicate::Compare(Comparison::Eq, value) => null(value.as_raw_bson_ref()),
                Predicate::In { values, .. } => values.iter().any(|v| null(v.as_raw_bson_ref())),
                _ => false,
            };
            // `a.b` of an empty array is not there, and not null either.
            return takes_null && (!arrays || self.path.parts().len() == 1);
        }
        match self.predicate {
            Predicate::Compare(Comparison::Eq, value) => !null(value.as_raw_bson_ref()),
            Predicate::Compare(Comparison::Lt | Comparison::Gt, value) => {
                null(value.as_raw_bson_ref()) || !end(value.as_raw_bson_ref())
            }
            Predicate::Compare(_, value) => !end(value.as_raw_bson_ref()),
            Predicate::ExprCompare(comparison, value) | Predicate::Extreme(comparison, value) => {
                match comparison {
                    Comparison::Eq | Comparison::Gt | Comparison::Gte => {
                        !end(value.as_raw_bson_ref())
                    }
                    Comparison::Lt | Comparison::Lte => false,
                }
            }
            Predicate::In { values, .. } => !values.iter().any(|v| null(v.as_raw_bson_ref())),
            _ => true,
        }
    }
}
