//! One tree for filters that say the same: nested conjunctions and disjunctions are flattened,
//! single children stand for themselves, constants are folded, equalities of one path joined by
//! `$or` become an `$in`, and children are in MongoDB's canonical order.
//!
//! The position that `$` stands for depends on that order: the last path of a conjunction that
//! matched inside an array decides it.

use std::cmp::Ordering;
use std::collections::HashMap;

use banyan_document::Collator;
use banyan_document::compare::compare_collated;
use banyan_document::path::Path;
use bson::RawBson;

use super::bits::BitTest;
use super::rewrite;
use super::tree::{MatchNode, Predicate};
use crate::budget::Budget;
use crate::comparison::Comparison;
use crate::error::QueryError;
use crate::merge_sort;
use crate::pattern::Pattern;

/// What comparing two conditions or values looks at, as a rule.
const COMPARED_BYTES: usize = 256;

/// What a filter is normalised by.
#[derive(Clone, Copy)]
pub(super) struct Normaliser<'a> {
    pub collator: Option<&'a Collator>,
    pub budget: &'a Budget,
    /// Children stay in the order in which they are written.
    pub keeps_order: bool,
}

impl Normaliser<'_> {
    pub fn normalise(self, node: MatchNode) -> Result<MatchNode, QueryError> {
        self.budget.spend_part()?;
        Ok(match node {
            MatchNode::And(children) => self.conjunction(self.normalised(children)?)?,
            MatchNode::Or(children) => self.disjunction(self.normalised(children)?)?,
            MatchNode::Nor(children) => {
                let mut children = self.in_order(self.normalised(children)?)?;
                if children.len() == 1 {
                    MatchNode::Not(Box::new(children.remove(0)))
                } else {
                    MatchNode::Nor(children)
                }
            }
            MatchNode::Not(child) => MatchNode::Not(Box::new(self.normalise(*child)?)),
            MatchNode::Path { path, predicate } => MatchNode::Path {
                path,
                predicate: self.simplified(predicate)?,
            },
            MatchNode::Expression { expression, source } => {
                let implied = rewrite::implied(&expression);
                let mut children = vec![MatchNode::Expression { expression, source }];
                if let Some(implied) = implied {
                    children.push(self.normalise(implied)?);
                }
                self.conjunction(children)?
            }
            MatchNode::Where(_)
            | MatchNode::Schema { .. }
            | MatchNode::Text(_)
            | MatchNode::AlwaysTrue
            | MatchNode::AlwaysFalse => node,
        })
    }

    fn normalised(self, children: Vec<MatchNode>) -> Result<Vec<MatchNode>, QueryError> {
        let children = children.into_iter();
        children.map(|child| self.normalise(child)).collect()
    }

    fn in_order(self, children: Vec<MatchNode>) -> Result<Vec<MatchNode>, QueryError> {
        match self.keeps_order {
            true => Ok(children),
            false => sorted(children, order, self.budget),
        }
    }

    /// A conjunction of normalised children.
    fn conjunction(self, children: Vec<MatchNode>) -> Result<MatchNode, QueryError> {
        let mut flat = Vec::with_capacity(children.len());
        for child in children {
            match child {
                MatchNode::And(inner) => flat.extend(inner),
                MatchNode::AlwaysTrue => {}
                MatchNode::AlwaysFalse => return Ok(MatchNode::AlwaysFalse),
                other => flat.push(other),
            }
        }
        let mut flat = self.in_order(flat)?;
        Ok(if flat.len() == 1 {
            flat.remove(0)
        } else {
            MatchNode::And(flat)
        })
    }

    /// A disjunction of normalised children.
    fn disjunction(self, children: Vec<MatchNode>) -> Result<MatchNode, QueryError> {
        let mut flat = Vec::with_capacity(children.len());
        for child in children {
            match child {
                MatchNode::Or(inner) => flat.extend(inner),
                MatchNode::AlwaysFalse => {}
                other => flat.push(other),
            }
        }
        if flat.len() > 1 && flat.iter().any(MatchNode::is_trivially_true) {
            return Ok(MatchNode::AlwaysTrue);
        }
        let mut flat = self.in_order(self.join_equalities(flat)?)?;
        Ok(match flat.len() {
            0 => MatchNode::AlwaysFalse,
            1 => flat.remove(0),
            _ => MatchNode::Or(flat),
        })
    }

    /// Equalities (and patterns) of one path as one `$in`.
    fn join_equalities(self, children: Vec<MatchNode>) -> Result<Vec<MatchNode>, QueryError> {
        let mut counts: HashMap<Path, usize> = HashMap::new();
        for path in children.iter().filter_map(equality_path) {
            self.budget.spend_part()?;
            *counts.entry(path.clone()).or_default() += 1;
        }
        if counts.values().all(|count| *count < 2) {
            return Ok(children);
        }
        let mut joined: HashMap<Path, (Vec<RawBson>, Vec<Pattern>)> = HashMap::new();
        let mut others = Vec::with_capacity(children.len());
        for child in children {
            self.budget.spend_part()?;
            let several = equality_path(&child).is_some_and(|path| counts[path] > 1);
            match child {
                MatchNode::Path { path, predicate } if several => {
                    let (values, patterns) = joined.entry(path).or_default();
                    match predicate {
                        Predicate::Compare(_, value) => values.push(value),
                        Predicate::Regex(pattern) => patterns.push(pattern),
                        _ => {}
                    }
                }
                other => others.push(other),
            }
        }
        let joined = joined.into_iter().map(|(path, (values, patterns))| {
            let values = sorted_values(values, self.collator, self.budget)?;
            let predicate = Predicate::In { values, patterns };
            Ok(MatchNode::Path { path, predicate })
        });
        joined.chain(others.into_iter().map(Ok)).collect()
    }

    fn simplified(self, predicate: Predicate) -> Result<Predicate, QueryError> {
        // The parser leaves the values as they were written, as does what joins filters.
        let predicate = match predicate {
            Predicate::In { values, patterns } => Predicate::In {
                values: sorted_values(values, self.collator, self.budget)?,
                patterns,
            },
            other => other,
        };
        Ok(match predicate {
            Predicate::In {
                mut values,
                patterns,
            } if values.len() == 1 && patterns.is_empty() => {
                Predicate::Compare(Comparison::Eq, values.remove(0))
            }
            Predicate::In {
                values,
                mut patterns,
            } if values.is_empty() && patterns.len() == 1 => Predicate::Regex(patterns.remove(0)),
            Predicate::ElemMatchObject(node) => {
                Predicate::ElemMatchObject(Box::new(self.normalise(*node)?))
            }
            Predicate::ElemMatchValue(node) => {
                Predicate::ElemMatchValue(Box::new(self.normalise(*node)?))
            }
            other => other,
        })
    }
}

/// Sorts what cannot be copied, and can be ended on the way.
fn sorted<T>(
    items: Vec<T>,
    order: impl Fn(&T, &T) -> Ordering,
    budget: &Budget,
) -> Result<Vec<T>, QueryError> {
    if items.is_sorted_by(|a, b| order(a, b).is_le()) {
        budget.spend(items.len())?;
        return Ok(items);
    }
    let places: Vec<(usize, &T)> = items.iter().enumerate().collect();
    let by_item = |a: &(usize, &T), b: &(usize, &T)| order(a.1, b.1);
    let places = merge_sort::sort(places, by_item, |_| COMPARED_BYTES, budget)?;
    let places: Vec<usize> = places.into_iter().map(|(place, _)| place).collect();
    let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
    let taken = places
        .into_iter()
        .filter_map(|place| items.get_mut(place)?.take());
    Ok(taken.collect())
}

fn equality_path(node: &MatchNode) -> Option<&Path> {
    match node {
        MatchNode::Path {
            path,
            predicate: Predicate::Compare(Comparison::Eq, _) | Predicate::Regex(_),
        } => Some(path),
        _ => None,
    }
}

/// Sorts the values of an `$in`; of equal ones the first stays.
pub(super) fn sorted_values(
    values: Vec<RawBson>,
    collator: Option<&Collator>,
    budget: &Budget,
) -> Result<Vec<RawBson>, QueryError> {
    let order = |a: &RawBson, b: &RawBson| {
        compare_collated(a.as_raw_bson_ref(), b.as_raw_bson_ref(), collator)
    };
    let mut values = sorted(values, order, budget)?;
    values.dedup_by(|a, b| order(a, b).is_eq());
    Ok(values)
}

/// MongoDB's canonical order: by kind, by path, by children.
pub(super) fn order(a: &MatchNode, b: &MatchNode) -> Ordering {
    rank(a)
        .cmp(&rank(b))
        .then_with(|| dotted(a).cmp(dotted(b)))
        .then_with(|| {
            let (a, b) = (children(a), children(b));
            let differs = a.iter().zip(b).map(|(a, b)| order(a, b));
            let differs = differs.into_iter().find(|order| order.is_ne());
            differs.unwrap_or_else(|| a.len().cmp(&b.len()))
        })
}

fn children(node: &MatchNode) -> &[MatchNode] {
    match node {
        MatchNode::And(children) | MatchNode::Or(children) | MatchNode::Nor(children) => children,
        MatchNode::Not(child) => std::slice::from_ref(child),
        MatchNode::Path { predicate, .. } => match predicate {
            Predicate::ElemMatchObject(inner) => std::slice::from_ref(inner),
            Predicate::ElemMatchValue(inner) => match &**inner {
                MatchNode::And(children) => children,
                _ => std::slice::from_ref(inner),
            },
            _ => &[],
        },
        _ => &[],
    }
}

/// The bytes of a path as it is written.
fn dotted(node: &MatchNode) -> impl Iterator<Item = u8> + '_ {
    let parts = match node {
        MatchNode::Path { path, .. } => path.parts(),
        _ => &[],
    };
    parts.iter().enumerate().flat_map(|(at, part)| {
        let dot = (at > 0).then_some(b'.');
        dot.into_iter().chain(part.bytes())
    })
}

fn rank(node: &MatchNode) -> u8 {
    match node {
        MatchNode::And(_) => 0,
        MatchNode::Or(_) => 1,
        MatchNode::Path { predicate, .. } => predicate_rank(predicate),
        MatchNode::Not(_) => 18,
        MatchNode::Nor(_) => 19,
        MatchNode::Where(_) => 22,
        MatchNode::Expression { .. } => 23,
        MatchNode::AlwaysFalse => 24,
        MatchNode::AlwaysTrue => 25,
        MatchNode::Schema { .. } => 32,
        MatchNode::Text(_) => 33,
    }
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
        Predicate::Bits(bits) => match bits.test {
            BitTest::AllSet => 14,
            BitTest::AllClear => 15,
            BitTest::AnySet => 16,
            BitTest::AnyClear => 17,
        },
        Predicate::Type(_) => 20,
        Predicate::Geo(_) => 21,
        Predicate::InBucket(_) => 22,
        Predicate::Near(_) => 26,
        Predicate::ExprCompare(comparison, _) | Predicate::Extreme(comparison, _) => {
            match comparison {
                Comparison::Eq => 27,
                Comparison::Gt => 28,
                Comparison::Gte => 29,
                Comparison::Lt => 30,
                Comparison::Lte => 31,
            }
        }
    }
}
