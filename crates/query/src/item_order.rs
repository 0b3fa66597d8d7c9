//! How items of an array are ordered by their fields, in `$push` with `$sort` and in `$sortArray`.
//!
//! That is no order of documents: the value at a path counts as a whole, array or not, paths go
//! through arrays by positions alone, and any name is a field's, also one that begins with `$`.

use std::cmp::Ordering;

use banyan_document::element::{field, items};
use banyan_document::number::Number;
use banyan_document::{Collator, compare_collated};
use bson::{RawBsonRef, RawDocument};

/// The fields to order by, most significant first.
#[derive(Clone, Debug)]
pub(crate) struct ItemOrder {
    fields: Vec<Field>,
    collator: Option<Collator>,
}

#[derive(Clone, Debug)]
struct Field {
    path: Box<str>,
    descending: bool,
}

impl ItemOrder {
    /// The error is what is wrong with it; its code depends on where it is written.
    pub fn parse(fields: &RawDocument, collator: Option<&Collator>) -> Result<ItemOrder, String> {
        if fields.is_empty() {
            return Err("The sort pattern is empty when it should be a set of fields.".into());
        }
        let parse = |(path, direction): (&str, RawBsonRef<'_>)| {
            let Some(descending) = is_descending(direction) else {
                return Err("The sort element value must be either 1 or -1".into());
            };
            if path.is_empty() {
                return Err("The sort field cannot be empty".into());
            }
            if path.split('.').any(str::is_empty) {
                return Err(format!(
                    "The sort field is a dotted field but has an empty part: {path}"
                ));
            }
            Ok(Field {
                path: path.into(),
                descending,
            })
        };
        let fields = fields.iter().map_while(Result::ok);
        let fields = fields.map(|(path, direction)| parse((path.as_str(), direction)));
        Ok(ItemOrder {
            fields: fields.collect::<Result<_, _>>()?,
            collator: collator.cloned(),
        })
    }

    /// What an item is ordered by: the value of each field, null where it has none.
    pub fn key<'a>(&self, item: RawBsonRef<'a>) -> Vec<RawBsonRef<'a>> {
        let values = self.fields.iter().map(|field| match item {
            RawBsonRef::Document(_) => value_at(item, &field.path).unwrap_or(RawBsonRef::Null),
            // What is no document has none of the fields.
            _ => RawBsonRef::Null,
        });
        values.collect()
    }

    /// How items with these keys are ordered.
    pub fn compare(&self, a: &[RawBsonRef<'_>], b: &[RawBsonRef<'_>]) -> Ordering {
        let compared = self
            .fields
            .iter()
            .zip(a.iter().zip(b))
            .map(|(field, (a, b))| {
                let order = compare_collated(*a, *b, self.collator.as_ref());
                match field.descending {
                    true => order.reverse(),
                    false => order,
                }
            });
        compared.fold(Ordering::Equal, Ordering::then)
    }
}

/// Whether it is -1 rather than 1, of any type of number.
pub(crate) fn is_descending(direction: RawBsonRef<'_>) -> Option<bool> {
    match Number::from_raw(direction)?.to_i64_exact()? {
        1 => Some(false),
        -1 => Some(true),
        _ => None,
    }
}

/// A field whose name has dots goes before the path that it looks like.
fn value_at<'a>(value: RawBsonRef<'a>, path: &str) -> Option<RawBsonRef<'a>> {
    if let Some(value) = child(value, path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    value_at(child(value, first)?, rest)
}

fn child<'a>(value: RawBsonRef<'a>, name: &str) -> Option<RawBsonRef<'a>> {
    match value {
        RawBsonRef::Document(document) => field(document, name),
        RawBsonRef::Array(array) => {
            let position: usize = name.parse().ok()?;
            // "01" is no position.
            let item = items(array)
                .nth(position)
                .filter(|_| position.to_string() == name);
            item.map(|item| item.value())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawBson, RawDocumentBuf, rawdoc};

    use super::*;

    /// The numbers of the items, in their order.
    fn order(fields: &RawDocument, items: &[RawDocumentBuf]) -> Vec<usize> {
        let order = ItemOrder::parse(fields, None).unwrap();
        let key = |at: &usize| order.key(RawBsonRef::Document(&items[*at]));
        let mut numbers: Vec<usize> = (0..items.len()).collect();
        numbers.sort_by(|a, b| order.compare(&key(a), &key(b)));
        numbers
    }

    #[test]
    fn values_count_as_a_whole() {
        let items = [rawdoc! {"a": [1, 3]}, rawdoc! {"a": [2]}, rawdoc! {"a": 5}];
        assert_eq!(order(&rawdoc! {"a": 1}, &items), [2, 0, 1]);
        assert_eq!(order(&rawdoc! {"a": -1}, &items), [1, 0, 2]);
    }

    #[test]
    fn paths_go_through_arrays_by_positions_alone() {
        let items = [
            rawdoc! {"a": [{"b": 9}, 4]},
            rawdoc! {"a": {"b": 1, "1": 3}},
            rawdoc! {"b": 0},
        ];
        assert_eq!(order(&rawdoc! {"a.b": 1}, &items), [0, 2, 1]);
        assert_eq!(order(&rawdoc! {"a.1": -1}, &items), [0, 1, 2]);
        assert_eq!(order(&rawdoc! {"a.01": -1}, &items), [0, 1, 2]);
    }

    #[test]
    fn names_are_taken_as_they_are() {
        let items = [
            rawdoc! {"a.b": 2, "$c": 1},
            rawdoc! {"a": {"b": 1}, "$c": 2},
        ];
        assert_eq!(order(&rawdoc! {"a.b": 1}, &items), [1, 0]);
        assert_eq!(order(&rawdoc! {"$c": -1}, &items), [1, 0]);
    }

    #[test]
    fn what_is_no_document_has_no_fields() {
        let order = ItemOrder::parse(&rawdoc! {"a": 1}, None).unwrap();
        for item in [
            RawBson::Int32(3),
            RawBson::Null,
            RawBson::Array(Default::default()),
        ] {
            assert_eq!(order.key(item.as_raw_bson_ref()), [RawBsonRef::Null]);
        }
    }
}
