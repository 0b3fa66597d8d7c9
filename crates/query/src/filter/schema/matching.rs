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

use super::{Others, Rule, Schema};
use crate::error::QueryError;
use crate::filter::matching::compares;

impl Schema {
    pub(in crate::filter) fn accepts(&self, value: RawBsonRef<'_>) -> Result<bool, QueryError> {
        every(self.rules.iter(), |rule| rule.accepts(value))
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
    fn accepts(&self, value: RawBsonRef<'_>) -> Result<bool, QueryError> {
        match value {
            RawBsonRef::Document(document) => {
                if let Some(accepted) = self.of_document(document)? {
                    return Ok(accepted);
                }
            }
            RawBsonRef::Array(array) => {
                if let Some(accepted) = self.of_array(array)? {
                    return Ok(accepted);
                }
            }
            RawBsonRef::String(text) | RawBsonRef::Symbol(text) => {
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
        self.of_any(value)
    }

    fn of_number(&self, value: RawBsonRef<'_>) -> Option<bool> {
        let number = Number::from_raw(value)?;
        match self {
            Rule::Compare(comparison, limit) => {
                Some(compares(Some(value), *comparison, limit.as_raw_bson_ref()))
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

    fn of_array(&self, array: &RawArray) -> Result<Option<bool>, QueryError> {
        Ok(match self {
            Rule::MinItems(least) => Some(items(array).take(*least).count() >= *least),
            Rule::MaxItems(most) => {
                Some(items(array).take(most.saturating_add(1)).count() <= *most)
            }
            Rule::UniqueItems => Some(!has_duplicates(array)),
            Rule::Items { first, rest } => Some(every(
                items(array).enumerate(),
                |(position, item)| match first.get(position) {
                    Some(schema) => schema.accepts(item.value()),
                    None => rest.accepts(item.value()),
                },
            )?),
            _ => None,
        })
    }

    fn of_document(&self, document: &RawDocument) -> Result<Option<bool>, QueryError> {
        Ok(match self {
            Rule::MinProperties(least) => Some(elements(document).take(*least).count() >= *least),
            Rule::MaxProperties(most) => {
                Some(elements(document).take(most.saturating_add(1)).count() <= *most)
            }
            Rule::Required(path) => Some(exists(document, path)),
            Rule::Property(path, schema) => Some(accepts_at(schema, document, path)?),
            Rule::Others {
                named,
                patterns,
                rest,
            } => Some(every(elements(document), |element| {
                let mut known = named.iter().any(|name| **name == *element.name());
                for (pattern, schema) in patterns {
                    if pattern.is_match(element.name())? {
                        known = true;
                        if !schema.accepts(element.value())? {
                            return Ok(false);
                        }
                    }
                }
                if known {
                    Ok(true)
                } else {
                    rest.accepts(element.value())
                }
            })?),
            Rule::Dependency(path, schema) => {
                Some(!exists(document, path) || schema.accepts(RawBsonRef::Document(document))?)
            }
            _ => None,
        })
    }

    fn of_any(&self, value: RawBsonRef<'_>) -> Result<bool, QueryError> {
        match self {
            Rule::Types(set) => Ok(set.contains(value.element_type())),
            Rule::Encrypted => Ok(matches!(
                value,
                RawBsonRef::Binary(binary) if binary.subtype == BinarySubtype::Encrypted
            )),
            Rule::Enum(values) => {
                let mut values = values.iter().map(|known| known.as_raw_bson_ref());
                Ok(values.any(|known| compare_unordered(known, value).is_eq()))
            }
            Rule::All(schemas) => every(schemas, |schema| schema.accepts(value)),
            Rule::Any(schemas) => Ok(!every(schemas, |schema| Ok(!schema.accepts(value)?))?),
            Rule::One(schemas) => {
                let mut accepting = 0;
                for schema in schemas {
                    accepting += usize::from(schema.accepts(value)?);
                }
                Ok(accepting == 1)
            }
            Rule::Not(schema) => Ok(!schema.accepts(value)?),
            // About values of other types.
            _ => Ok(true),
        }
    }
}

impl Others {
    fn accepts(&self, value: RawBsonRef<'_>) -> Result<bool, QueryError> {
        match self {
            Others::Any => Ok(true),
            Others::None => Ok(false),
            Others::Like(schema) => schema.accepts(value),
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
fn accepts_at(schema: &Schema, document: &RawDocument, path: &Path) -> Result<bool, QueryError> {
    let (mut found, mut accepted) = (false, Ok(false));
    let _ = visit_with(document, path.parts(), Leaf::Whole, &mut |visit: Visit<
        '_,
    >| {
        let Some(value) = visit.value else {
            return ControlFlow::Continue(());
        };
        found = true;
        accepted = schema.accepts(value);
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
pub(super) fn has_duplicates(array: &RawArray) -> bool {
    let mut values: Vec<_> = items(array).map(|item| item.value()).collect();
    values.sort_by(|a, b| compare_unordered(*a, *b));
    values
        .windows(2)
        .any(|pair| matches!(pair, [a, b] if compare_unordered(*a, *b).is_eq()))
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
