//! Running a schema over a value.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use banyan_document::canonical_rank;
use banyan_document::compare::compare;
use banyan_document::element::{elements, items};
use banyan_document::number::Number;
use banyan_document::path::{Leaf, Path, Visit, visit_with};
use bson::spec::BinarySubtype;
use bson::{RawArray, RawBsonRef, RawDocument};

use super::rule::{Others, Rule, Schema};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::filter::matching::compares;
use crate::merge_sort;

impl Schema {
    pub(crate) fn accepts(
        &self,
        value: RawBsonRef<'_>,
        budget: &Budget,
    ) -> Result<bool, QueryError> {
        every(self.rules.iter(), |rule| {
            budget.spend(1)?;
            rule.accepts(value, budget)
        })
    }
}

fn every<T>(
    parts: impl IntoIterator<Item = T>,
    mut test: impl FnMut(T) -> Result<bool, QueryError>,
) -> Result<bool, QueryError> {
    for part in parts {
        if !test(part)? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Rule {
    fn accepts(&self, value: RawBsonRef<'_>, budget: &Budget) -> Result<bool, QueryError> {
        match value {
            RawBsonRef::Document(document) => {
                if let Some(accepted) = self.of_document(document, budget)? {
                    return Ok(accepted);
                }
            }
            RawBsonRef::Array(array) => {
                if let Some(accepted) = self.of_array(array, budget)? {
                    return Ok(accepted);
                }
            }
            RawBsonRef::String(text) => {
                if let Some(accepted) = self.of_text(text)? {
                    return Ok(accepted);
                }
            }
            _ => {
                if let Some(accepted) = self.of_number(value) {
                    return Ok(accepted);
                }
            }
        }
        self.of_any(value, budget)
    }

    fn of_number(&self, value: RawBsonRef<'_>) -> Option<bool> {
        let number = Number::from_raw(value)?;
        match self {
            Rule::Compare(comparison, limit) => {
                // Schemas compare by bytes, whatever the collation.
                Some(compares(
                    Some(value),
                    *comparison,
                    limit.as_raw_bson_ref(),
                    None,
                ))
            }
            Rule::MultipleOf(divisor) => {
                let divisor = Number::from_raw(divisor.as_raw_bson_ref())?;
                Some(is_multiple(number, divisor))
            }
            _ => None,
        }
    }

    fn of_text(&self, text: &str) -> Result<Option<bool>, QueryError> {
        Ok(match self {
            Rule::MinLength(least) => Some(text.chars().count() >= *least),
            Rule::MaxLength(most) => Some(text.chars().count() <= *most),
            Rule::Pattern(pattern) => Some(pattern.is_match(text)?),
            _ => None,
        })
    }

    fn of_array(&self, array: &RawArray, budget: &Budget) -> Result<Option<bool>, QueryError> {
        Ok(match self {
            Rule::MinItems(least) => Some(items(array).take(*least).count() >= *least),
            Rule::MaxItems(most) => {
                Some(items(array).take(most.saturating_add(1)).count() <= *most)
            }
            Rule::UniqueItems => Some(!has_duplicates(array, budget)?),
            Rule::Items { first, rest } => Some(every(
                items(array).enumerate(),
                |(position, item)| match first.get(position) {
                    Some(schema) => schema.accepts(item.value(), budget),
                    None => rest.accepts(item.value(), budget),
                },
            )?),
            _ => None,
        })
    }

    fn of_document(
        &self,
        document: &RawDocument,
        budget: &Budget,
    ) -> Result<Option<bool>, QueryError> {
        Ok(match self {
            Rule::MinProperties(least) => Some(elements(document).take(*least).count() >= *least),
            Rule::MaxProperties(most) => {
                Some(elements(document).take(most.saturating_add(1)).count() <= *most)
            }
            Rule::Required(path) => Some(exists(document, path)),
            Rule::Property(path, schema) => Some(accepts_at(schema, document, path, budget)?),
            Rule::Others {
                named,
                patterns,
                rest,
            } => Some(every(elements(document), |element| {
                budget.spend(1 + named.len() / 8)?;
                let mut known = named.iter().any(|name| **name == *element.name());
                for (pattern, schema) in patterns {
                    if pattern.is_match(element.name())? {
                        known = true;
                        if !schema.accepts(element.value(), budget)? {
                            return Ok(false);
                        }
                    }
                }
                if known {
                    Ok(true)
                } else {
                    rest.accepts(element.value(), budget)
                }
            })?),
            Rule::Dependency(path, schema) => Some(
                !exists(document, path)
                    || schema.accepts(RawBsonRef::Document(document), budget)?,
            ),
            _ => None,
        })
    }

    fn of_any(&self, value: RawBsonRef<'_>, budget: &Budget) -> Result<bool, QueryError> {
        match self {
            Rule::Types(set) => Ok(set.contains(value.element_type())),
            Rule::Encrypted => Ok(matches!(
                value,
                RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Encrypted
            )),
            Rule::Enum(values) => {
                for known in values {
                    budget.spend(1)?;
                    if compare_unordered(known.as_raw_bson_ref(), value).is_eq() {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Rule::All(schemas) => every(schemas, |schema| schema.accepts(value, budget)),
            Rule::Any(schemas) => Ok(!every(schemas, |schema| {
                Ok(!schema.accepts(value, budget)?)
            })?),
            Rule::One(schemas) => {
                let mut accepting = 0;
                for schema in schemas {
                    accepting += usize::from(schema.accepts(value, budget)?);
                }
                Ok(accepting == 1)
            }
            Rule::Not(schema) => Ok(!schema.accepts(value, budget)?),
            // About values of other types.
            _ => Ok(true),
        }
    }
}

impl Others {
    fn accepts(&self, value: RawBsonRef<'_>, budget: &Budget) -> Result<bool, QueryError> {
        match self {
            Others::Any => Ok(true),
            Others::None => Ok(false),
            Others::Like(schema) => schema.accepts(value, budget),
        }
    }
}

fn exists(document: &RawDocument, path: &Path) -> bool {
    let mut found = false;
    let _ = visit_with(document, path.parts(), Leaf::Whole, &mut |visit: Visit<
        '_,
    >| {
        found |= visit.value.is_some();
        match found {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    found
}

/// Whether the path is not there or one of its values is accepted. Arrays on the way, which only
/// a name with dots can meet, are gone through as everywhere in filters; one at its end is not.
fn accepts_at(
    schema: &Schema,
    document: &RawDocument,
    path: &Path,
    budget: &Budget,
) -> Result<bool, QueryError> {
    let (mut found, mut accepted) = (false, Ok(false));
    let _ = visit_with(document, path.parts(), Leaf::Whole, &mut |visit: Visit<
        '_,
    >| {
        let Some(value) = visit.value else {
            return ControlFlow::Continue(());
        };
        found = true;
        accepted = schema.accepts(value, budget);
        match accepted {
            Ok(false) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    });
    accepted.map(|accepted| accepted || !found)
}

fn is_multiple(number: Number, divisor: Number) -> bool {
    let remainder = match (number.to_i64_exact(), divisor.to_i64_exact()) {
        (Some(number), Some(divisor)) => return divisor != 0 && number.wrapping_rem(divisor) == 0,
        _ => number.remainder(divisor),
    };
    remainder.is_some_and(|rest| !rest.is_nan() && rest.to_f64() == 0.0)
}

/// Whether two items are equal, whatever the order of their fields.
pub(super) fn has_duplicates(array: &RawArray, budget: &Budget) -> Result<bool, QueryError> {
    budget.spend_bytes(array.as_bytes().len())?;
    let values = items(array).map(|item| (item.value(), item.bytes().len()));
    let order =
        |a: &(RawBsonRef<'_>, usize), b: &(RawBsonRef<'_>, usize)| compare_unordered(a.0, b.0);
    let values = merge_sort::sort(values.collect(), order, |(_, bytes)| *bytes, budget)?;
    let mut pairs = values.windows(2);
    Ok(pairs.any(|pair| matches!(pair, [a, b] if order(a, b).is_eq())))
}

/// The first item that equals one before it, whatever the order of their fields.
pub(crate) fn first_duplicate<'a>(
    array: &'a RawArray,
    budget: &Budget,
) -> Result<Option<RawBsonRef<'a>>, QueryError> {
    budget.spend_bytes(array.as_bytes().len())?;
    let places = items(array).enumerate();
    let places = places.map(|(place, item)| (place, item.value(), item.bytes().len()));
    type Place<'a> = (usize, RawBsonRef<'a>, usize);
    let order = |a: &Place<'_>, b: &Place<'_>| compare_unordered(a.1, b.1).then(a.0.cmp(&b.0));
    let sorted = merge_sort::sort(places.collect(), order, |(_, _, bytes)| *bytes, budget)?;
    let pairs = sorted.windows(2).filter_map(|pair| match pair {
        [a, b] if compare_unordered(a.1, b.1).is_eq() => Some((b.0, b.1)),
        _ => None,
    });
    Ok(pairs
        .min_by_key(|(place, _)| *place)
        .map(|(_, value)| value))
}

/// An order of all values for which documents with the same fields are equal.
fn compare_unordered(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> Ordering {
    match (a, b) {
        (RawBsonRef::Document(a), RawBsonRef::Document(b)) => {
            let sorted = |document| {
                let mut fields: Vec<_> = elements(document).collect();
                fields.sort_by(|a, b| a.name().cmp(b.name()));
                fields
            };
            let (a, b) = (sorted(a), sorted(b));
            let differs = a.iter().zip(&b).map(|(a, b)| {
                a.name()
                    .cmp(b.name())
                    .then_with(|| compare_unordered(a.value(), b.value()))
            });
            let differs = differs.into_iter().find(|order| order.is_ne());
            differs.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (RawBsonRef::Array(a), RawBsonRef::Array(b)) => {
            let (mut a, mut b) = (items(a), items(b));
            loop {
                return match (a.next(), b.next()) {
                    (Some(a), Some(b)) => match compare_unordered(a.value(), b.value()) {
                        Ordering::Equal => continue,
                        order => order,
                    },
                    (a, b) => a.is_some().cmp(&b.is_some()),
                };
            }
        }
        _ => canonical_rank(&a)
            .cmp(&canonical_rank(&b))
            .then_with(|| compare(a, b)),
    }
}
