//! Running a filter over a raw document.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use banyan_document::Collator;
use banyan_document::compare::{canonical_rank, compare_collated};
use banyan_document::element::items;
use banyan_document::number::{Number, Rounding};
use banyan_document::path::{Leaf, Visit, visit_with};
use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::buckets;
use super::tree::{MatchNode, Predicate, Where};
use crate::budget::Budget;
use crate::comparison::Comparison;
use crate::error::{ErrorKind, QueryError};
use crate::javascript::{Input, ahead};
use crate::pattern::Pattern;

/// 2^63
const I64_LIMIT: f64 = 9_223_372_036_854_775_808.0;

/// `position` is set by the last path that matched inside an array.
pub(super) fn matches(
    node: &MatchNode,
    document: &RawDocument,
    mut position: Option<&mut Option<usize>>,
    collator: Option<&Collator>,
    budget: &Budget,
) -> Result<bool, QueryError> {
    budget.spend(1)?;
    match node {
        MatchNode::And(children) => {
            for child in children {
                if !matches(child, document, position.as_deref_mut(), collator, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        MatchNode::Or(children) => any(children, |child| {
            matches(child, document, None, collator, budget)
        }),
        MatchNode::Nor(children) => Ok(!any(children, |child| {
            matches(child, document, None, collator, budget)
        })?),
        MatchNode::Not(child) => Ok(!matches(child, document, None, collator, budget)?),
        // The `$expr` that it was derived from decides, and the order of what is near.
        MatchNode::Path {
            predicate: Predicate::ExprCompare(..) | Predicate::Near(_),
            ..
        } => Ok(true),
        MatchNode::Path {
            path,
            predicate: Predicate::Extreme(comparison, value),
        } => {
            budget.spend_bytes(document.as_bytes().len())?;
            let value = value.as_raw_bson_ref();
            Ok(buckets::extreme_holds(
                document,
                path,
                *comparison,
                value,
                collator,
            ))
        }
        MatchNode::Path {
            path,
            predicate: Predicate::InBucket(geo),
        } => buckets::holds_some(document, path, geo, budget),
        MatchNode::Path { path, predicate } => matches_path(
            document,
            path.parts(),
            predicate,
            position,
            collator,
            budget,
        ),
        MatchNode::Expression { expression, .. } => expression.is_true(document),
        MatchNode::Where(code) => code.is_true(document),
        MatchNode::Schema { schema, .. } => schema.accepts(RawBsonRef::Document(document), budget),
        MatchNode::Text(query) => {
            budget.spend_bytes(document.as_bytes().len())?;
            query.matches(document)
        }
        MatchNode::AlwaysTrue => Ok(true),
        MatchNode::AlwaysFalse => Ok(false),
    }
}

fn any(
    children: &[MatchNode],
    mut f: impl FnMut(&MatchNode) -> Result<bool, QueryError>,
) -> Result<bool, QueryError> {
    for child in children {
        if f(child)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn matches_path(
    document: &RawDocument,
    parts: &[Box<str>],
    predicate: &Predicate,
    position: Option<&mut Option<usize>>,
    collator: Option<&Collator>,
    budget: &Budget,
) -> Result<bool, QueryError> {
    // What is not there is looked for in the whole document.
    budget.spend_bytes(document.as_bytes().len())?;
    let leaf = if predicate.is_about_whole_array() {
        Leaf::Whole
    } else {
        Leaf::Items
    };
    let mut found = None;
    let mut result = Ok(false);
    let _ = visit_with(document, parts, leaf, &mut |visit: Visit<'_>| {
        let mut item = None;
        result = predicate.holds(visit.value, &mut item, collator, budget);
        if matches!(result, Ok(false)) {
            return ControlFlow::Continue(());
        }
        found = visit.position.or(item);
        ControlFlow::Break(())
    });
    if let (Ok(true), Some(slot), Some(found)) = (&result, position, found) {
        *slot = Some(found);
    }
    result
}

impl Predicate {
    fn is_about_whole_array(&self) -> bool {
        matches!(
            self,
            Predicate::Size(_) | Predicate::ElemMatchObject(_) | Predicate::ElemMatchValue(_)
        )
    }

    /// Whether one value (`None`: missing) satisfies the predicate. `item` is where in the array,
    /// for those that look into one.
    fn holds(
        &self,
        value: Option<RawBsonRef<'_>>,
        item: &mut Option<usize>,
        collator: Option<&Collator>,
        budget: &Budget,
    ) -> Result<bool, QueryError> {
        budget.spend(1)?;
        Ok(match self {
            Predicate::Compare(op, operand) => {
                compares(value, *op, operand.as_raw_bson_ref(), collator)
            }
            Predicate::ExprCompare(..) | Predicate::Extreme(..) | Predicate::InBucket(_) => true,
            Predicate::In { values, patterns } => {
                is_in(value, values, collator) || matches_any(value, patterns, budget)?
            }
            Predicate::Regex(pattern) => matches_pattern(value, pattern)?,
            Predicate::Exists => value.is_some(),
            Predicate::Type(types) => value.is_some_and(|v| types.contains(v.element_type())),
            Predicate::Mod { divisor, remainder } => {
                value.is_some_and(|v| leaves_remainder(v, *divisor, *remainder))
            }
            Predicate::Bits(bits) => value.is_some_and(|v| bits.holds(v)),
            Predicate::Geo(geo) => match value {
                Some(value) => geo.holds(value, budget)?,
                None => false,
            },
            Predicate::Near(_) => true,
            Predicate::Size(size) => match value {
                Some(RawBsonRef::Array(array)) => items(array).count() as i64 == *size,
                _ => false,
            },
            Predicate::ElemMatchObject(node) => match value {
                Some(RawBsonRef::Array(array)) => {
                    *item = find_item(array, |v| match as_document(v) {
                        Some(document) => matches(node, document, None, collator, budget),
                        None => Ok(false),
                    })?;
                    item.is_some()
                }
                _ => false,
            },
            Predicate::ElemMatchValue(node) => match value {
                Some(RawBsonRef::Array(array)) => {
                    *item = find_item(array, |v| matches_value(node, v, collator, budget))?;
                    item.is_some()
                }
                _ => false,
            },
        })
    }
}

/// Runs the tree over one value, whatever the paths in it.
pub(super) fn matches_value(
    node: &MatchNode,
    value: RawBsonRef<'_>,
    collator: Option<&Collator>,
    budget: &Budget,
) -> Result<bool, QueryError> {
    budget.spend(1)?;
    match node {
        MatchNode::And(children) => {
            for child in children {
                if !matches_value(child, value, collator, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        MatchNode::Or(children) => any(children, |child| {
            matches_value(child, value, collator, budget)
        }),
        MatchNode::Nor(children) => Ok(!any(children, |child| {
            matches_value(child, value, collator, budget)
        })?),
        MatchNode::Not(child) => Ok(!matches_value(child, value, collator, budget)?),
        MatchNode::Path { predicate, .. } => {
            predicate.holds(Some(value), &mut None, collator, budget)
        }
        MatchNode::AlwaysTrue => Ok(true),
        MatchNode::Expression { .. }
        | MatchNode::Where(_)
        | MatchNode::Text(_)
        | MatchNode::Schema { .. }
        | MatchNode::AlwaysFalse => Ok(false),
    }
}

/// Whether an item satisfies the `$elemMatch` predicates in a tree that stands for the array.
pub(super) fn item_matches(
    node: &MatchNode,
    item: RawBsonRef<'_>,
    collator: Option<&Collator>,
    budget: &Budget,
) -> Result<bool, QueryError> {
    match node {
        MatchNode::Path {
            predicate: Predicate::ElemMatchObject(inner),
            ..
        } => as_document(item).map_or(Ok(false), |document| {
            matches(inner, document, None, collator, budget)
        }),
        MatchNode::Path {
            predicate: Predicate::ElemMatchValue(inner),
            ..
        } => matches_value(inner, item, collator, budget),
        other => matches_value(other, item, collator, budget),
    }
}

fn find_item(
    array: &RawArray,
    mut f: impl FnMut(RawBsonRef<'_>) -> Result<bool, QueryError>,
) -> Result<Option<usize>, QueryError> {
    for (index, item) in items(array).enumerate() {
        if f(item.value())? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Arrays inside arrays are documents named by position.
fn as_document(value: RawBsonRef<'_>) -> Option<&RawDocument> {
    match value {
        RawBsonRef::Document(document) => Some(document),
        RawBsonRef::Array(array) => RawDocument::from_bytes(array.as_bytes()).ok(),
        _ => None,
    }
}

/// Values of different types do not compare, but for three exceptions: all numbers are one type,
/// missing and undefined are as null is, and everything lies between MinKey and MaxKey. NaN is
/// equal to itself and compares with nothing else.
pub(super) fn compares(
    value: Option<RawBsonRef<'_>>,
    op: Comparison,
    operand: RawBsonRef<'_>,
    collator: Option<&Collator>,
) -> bool {
    let value = match value {
        None | Some(RawBsonRef::Undefined) => RawBsonRef::Null,
        Some(value) => value,
    };
    let unlike = canonical_rank(&value) != canonical_rank(&operand);
    if unlike && !matches!(operand, RawBsonRef::MinKey | RawBsonRef::MaxKey) {
        return false;
    }
    let order = compare_collated(value, operand, collator);
    if op != Comparison::Eq && order != Ordering::Equal && (is_nan(value) || is_nan(operand)) {
        return unlike && op.accepts(order);
    }
    op.accepts(order)
}

fn is_nan(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Double(v) => v.is_nan(),
        RawBsonRef::Decimal128(_) => Number::from_raw(value).is_some_and(Number::is_nan),
        _ => false,
    }
}

fn is_in(value: Option<RawBsonRef<'_>>, values: &[RawBson], collator: Option<&Collator>) -> bool {
    let value = match value {
        None | Some(RawBsonRef::Undefined) => RawBsonRef::Null,
        Some(value) => value,
    };
    values
        .binary_search_by(|probe| compare_collated(probe.as_raw_bson_ref(), value, collator))
        .is_ok()
}

fn matches_any(
    value: Option<RawBsonRef<'_>>,
    patterns: &[Pattern],
    budget: &Budget,
) -> Result<bool, QueryError> {
    for pattern in patterns {
        budget.spend(1)?;
        if matches_pattern(value, pattern)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn matches_pattern(value: Option<RawBsonRef<'_>>, pattern: &Pattern) -> Result<bool, QueryError> {
    Ok(match value {
        Some(RawBsonRef::String(text) | RawBsonRef::Symbol(text)) => pattern.is_match(text)?,
        Some(RawBsonRef::RegularExpression(regex)) => {
            regex.pattern.as_str() == pattern.source()
                && regex.options.as_str() == pattern.options()
        }
        _ => false,
    })
}

fn leaves_remainder(value: RawBsonRef<'_>, divisor: i64, remainder: i64) -> bool {
    // Fractions are cut off; what is no 64-bit integer then leaves no remainder.
    let whole = match Number::from_raw(value) {
        Some(Number::Double(v)) if v.abs() < I64_LIMIT => Some(v as i64),
        Some(Number::Double(_)) | None => None,
        Some(Number::Decimal(v)) => v.round_to(0, Rounding::Truncate).to_i64_exact(),
        Some(integer) => integer.to_i64_exact(),
    };
    whole.is_some_and(|whole| whole.wrapping_rem(divisor) == remainder)
}

impl Where {
    fn is_true(&self, document: &RawDocument) -> Result<bool, QueryError> {
        match ahead::answer(&self.0, Input::This(document))? {
            RawBson::Boolean(is_true) => Ok(is_true),
            _ => Err(QueryError::new(
                ErrorKind::JsInterpreterFailure,
                "the engine did not say whether a script is true",
            )),
        }
    }
}
