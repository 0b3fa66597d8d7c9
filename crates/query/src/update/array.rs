//! The operators on arrays: `$push`, `$addToSet`, `$pull`, `$pullAll`.

use std::collections::HashSet;

use banyan_document::Collator;
use banyan_document::compare::compare_collated;
use banyan_document::element::{elements, items};
use banyan_document::key;
use banyan_document::kind;
use banyan_document::number::Number;
use banyan_document::writer::DocumentWriter;
use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use super::array_filter::refuse_features;
use crate::context::Context;
use crate::error::QueryError;
use crate::filter::{Filter, begins_with_operator};
use crate::item_order::{ItemOrder, is_descending};

#[derive(Clone, Debug)]
pub(super) struct Push {
    items: Vec<RawBson>,
    /// Where the items go; at the end if there is none, from the end if negative.
    position: Option<i64>,
    /// How many items stay; the last ones if negative.
    slice: Option<i64>,
    sort: Option<PushSort>,
}

#[derive(Clone, Debug)]
enum PushSort {
    Whole {
        descending: bool,
        collator: Option<Collator>,
    },
    Fields(ItemOrder),
}

impl Push {
    /// Whether the items go behind those that are there, which stay as they are.
    pub fn only_appends(&self) -> bool {
        self.position.is_none() && self.slice.is_none() && self.sort.is_none()
    }

    /// Whether it sorts the items.
    pub fn sorts(&self) -> bool {
        self.sort.is_some()
    }

    pub fn parse(operand: RawBsonRef<'_>, context: &Context) -> Result<Push, QueryError> {
        let mut push = Push {
            items: Vec::new(),
            position: None,
            slice: None,
            sort: None,
        };
        let Some(document) = operand.as_document().filter(|document| has_each(document)) else {
            push.items.push(operand.into());
            return Ok(push);
        };
        for element in elements(document) {
            let value = element.value();
            match element.name() {
                "$each" => push.items = each_items(value)?,
                "$position" => {
                    push.position = Some(whole(value).ok_or_else(|| {
                        QueryError::bad_value(format!(
                            "The value for $position must be an integer value, not of type: {}",
                            kind::name(&value)
                        ))
                    })?);
                }
                "$slice" => {
                    push.slice = Some(whole(value).ok_or_else(|| {
                        QueryError::bad_value(format!(
                            "The value for $slice must be an integer value but was given type: {}",
                            kind::name(&value)
                        ))
                    })?);
                }
                "$sort" => push.sort = Some(PushSort::parse(value, context)?),
                name => {
                    return Err(QueryError::bad_value(format!(
                        "Unrecognized clause in $push: {name}"
                    )));
                }
            }
        }
        Ok(push)
    }

    pub fn items(&self) -> &[RawBson] {
        &self.items
    }

    /// Writes the items of the new array into the open one.
    pub fn write(
        &self,
        array: Option<&RawArray>,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        if let (Some(array), None, None, None) = (array, self.position, self.slice, &self.sort) {
            for item in items(array) {
                writer.push_element(&item);
            }
            for item in &self.items {
                writer.push(item.as_raw_bson_ref());
            }
            return Ok(());
        }
        let mut all: Vec<RawBsonRef<'_>> = array
            .map(|array| items(array).map(|item| item.value()).collect())
            .unwrap_or_default();
        let at = insertion_point(self.position, all.len());
        all.splice(at..at, self.items.iter().map(RawBson::as_raw_bson_ref));
        if let Some(sort) = &self.sort {
            sort.sort(&mut all);
        }
        for item in slice(&all, self.slice) {
            writer.push(*item);
        }
        Ok(())
    }
}

fn has_each(document: &RawDocument) -> bool {
    each(RawBsonRef::Document(document)).is_some()
        || elements(document).any(|element| element.name() == "$each")
}

fn each_items(value: RawBsonRef<'_>) -> Result<Vec<RawBson>, QueryError> {
    match value {
        RawBsonRef::Array(array) => Ok(items(array).map(|item| item.value().into()).collect()),
        other => Err(QueryError::bad_value(format!(
            "The argument to $each in $push must be an array but it was of type: {}",
            kind::name(&other)
        ))),
    }
}

fn whole(value: RawBsonRef<'_>) -> Option<i64> {
    Number::from_raw(value).and_then(Number::to_i64_exact)
}

fn insertion_point(position: Option<i64>, length: usize) -> usize {
    match position {
        None => length,
        Some(at) if at < 0 => length.saturating_sub(at.unsigned_abs() as usize),
        Some(at) => length.min(at as usize),
    }
}

fn slice<'s, 'a>(all: &'s [RawBsonRef<'a>], slice: Option<i64>) -> &'s [RawBsonRef<'a>] {
    match slice {
        None => all,
        Some(count) if count < 0 => &all[all.len().saturating_sub(count.unsigned_abs() as usize)..],
        Some(count) => &all[..all.len().min(count as usize)],
    }
}

impl PushSort {
    fn parse(value: RawBsonRef<'_>, context: &Context) -> Result<PushSort, QueryError> {
        if let RawBsonRef::Document(document) = value {
            let order = ItemOrder::parse(document, context.collator.as_ref());
            return order.map(PushSort::Fields).map_err(QueryError::bad_value);
        }
        match is_descending(value) {
            Some(descending) => Ok(PushSort::Whole {
                descending,
                collator: context.collator.clone(),
            }),
            None if Number::from_raw(value).is_some() => Err(QueryError::bad_value(
                "The $sort element value must be either 1 or -1",
            )),
            None => Err(QueryError::bad_value(
                "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} to \
                 sort embedded fields",
            )),
        }
    }

    fn sort(&self, all: &mut Vec<RawBsonRef<'_>>) {
        match self {
            PushSort::Whole {
                descending,
                collator,
            } => {
                let compare = |a, b| compare_collated(a, b, collator.as_ref());
                match descending {
                    false => all.sort_by(|a, b| compare(*a, *b)),
                    true => all.sort_by(|a, b| compare(*b, *a)),
                }
            }
            PushSort::Fields(order) => {
                let keyed = all.drain(..).map(|item| (order.key(item), item));
                let mut keyed: Vec<_> = keyed.collect();
                keyed.sort_by(|(a, _), (b, _)| order.compare(a, b));
                all.extend(keyed.into_iter().map(|(_, item)| item));
            }
        }
    }
}

/// Values to look others up in, equal when they compare as equal: as index keys, which are equal
/// then too.
pub(super) struct ValueSet<'c> {
    keys: HashSet<Vec<u8>>,
    buffer: Vec<u8>,
    collator: Option<&'c Collator>,
}

impl<'c> ValueSet<'c> {
    pub fn new(collator: Option<&'c Collator>) -> ValueSet<'c> {
        ValueSet {
            keys: HashSet::new(),
            buffer: Vec::new(),
            collator,
        }
    }

    pub fn of(values: &[RawBson], collator: Option<&'c Collator>) -> ValueSet<'c> {
        let mut set = ValueSet::new(collator);
        for value in values {
            set.insert(value.as_raw_bson_ref());
        }
        set
    }

    /// Whether the value is new.
    pub fn insert(&mut self, value: RawBsonRef<'_>) -> bool {
        !self.contains(value) && self.keys.insert(self.buffer.clone())
    }

    pub fn contains(&mut self, value: RawBsonRef<'_>) -> bool {
        self.buffer.clear();
        key::encode_collated(value, self.collator, &mut self.buffer);
        self.keys.contains(&self.buffer)
    }
}

/// Writes the items of a set with those added that it lacks.
pub(super) fn write_set(
    array: Option<&RawArray>,
    added: &[RawBson],
    collator: Option<&Collator>,
    writer: &mut DocumentWriter,
) {
    for item in array.into_iter().flat_map(items) {
        writer.push_element(&item);
    }
    if let [only] = added {
        let only = only.as_raw_bson_ref();
        let mut present = array.into_iter().flat_map(items);
        if !present.any(|item| compare_collated(item.value(), only, collator).is_eq()) {
            writer.push(only);
        }
        return;
    }
    let mut present = ValueSet::new(collator);
    for item in array.into_iter().flat_map(items) {
        present.insert(item.value());
    }
    for item in added {
        if present.insert(item.as_raw_bson_ref()) {
            writer.push(item.as_raw_bson_ref());
        }
    }
}

/// What a `$pull` takes off.
#[derive(Clone, Debug)]
pub(super) enum Pull {
    Equal(RawBson, Option<Collator>),
    /// Documents that match.
    Documents(Box<Filter>),
    /// Items that satisfy operators: the filter is on a field with an empty name.
    Items(Box<Filter>),
}

impl Pull {
    pub fn parse(operand: RawBsonRef<'_>, context: &Context) -> Result<Pull, QueryError> {
        let wrapped = || {
            let mut writer = DocumentWriter::new();
            writer.append("", operand);
            Filter::parse(&writer.finish(), context).map(|filter| Pull::Items(Box::new(filter)))
        };
        match operand {
            RawBsonRef::RegularExpression(_) => wrapped(),
            RawBsonRef::Document(document) => {
                if begins_with_operator(document) {
                    return wrapped();
                }
                refuse_features(document)?;
                Ok(Pull::Documents(Box::new(Filter::parse(document, context)?)))
            }
            other => Ok(Pull::Equal(other.into(), context.collator.clone())),
        }
    }

    pub fn takes(&self, item: RawBsonRef<'_>) -> Result<bool, QueryError> {
        match self {
            Pull::Equal(value, collator) => {
                Ok(compare_collated(item, value.as_raw_bson_ref(), collator.as_ref()).is_eq())
            }
            Pull::Documents(filter) => item
                .as_document()
                .map_or(Ok(false), |document| filter.try_matches(document)),
            Pull::Items(filter) => {
                let mut writer = DocumentWriter::new();
                writer.append("", item);
                filter.try_matches(&writer.finish())
            }
        }
    }
}

/// Writes the items that stay.
pub(super) fn write_without(
    array: &RawArray,
    writer: &mut DocumentWriter,
    mut takes: impl FnMut(RawBsonRef<'_>) -> Result<bool, QueryError>,
) -> Result<(), QueryError> {
    for item in items(array) {
        if !takes(item.value())? {
            writer.push_element(&item);
        }
    }
    Ok(())
}

/// The operand of `$each`, if the document starts with it.
pub(super) fn each(operand: RawBsonRef<'_>) -> Option<(RawBsonRef<'_>, &RawDocument)> {
    let document = operand.as_document()?;
    let first = elements(document).next()?;
    (first.name() == "$each").then(|| (first.value(), document))
}
