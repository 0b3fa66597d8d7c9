//! A difference, as MongoDB's oplog has it, applied to a document.

use std::collections::{HashMap, HashSet};

use banyan_document::element::{elements, field, items};
use banyan_document::kind;
use banyan_document::{DocumentWriter, MAX_STORED_DEPTH};
use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::error::{ErrorKind, QueryError};

/// An array does not become longer than this by a position that is named. A document of 16 MB holds
/// fewer items.
const ITEMS_MAX: usize = 1 << 21;

/// The document after the value of `diff` in `{$v: 2, diff: …}`. What the difference says of a field
/// that is no document or array as it was then becomes null, as in MongoDB: what made it so follows
/// in the log.
pub fn apply_oplog(
    document: &RawDocument,
    diff: &RawDocument,
) -> Result<RawDocumentBuf, QueryError> {
    check_document(diff, 0)?;
    document_with(document, diff, 0)
}

/// Whether a difference of a document is one, whatever it meets: its sections are in order, and none
/// says something of a field of which another one has.
fn check_document(diff: &RawDocument, depth: usize) -> Result<(), QueryError> {
    if depth > MAX_STORED_DEPTH {
        return wrong(4770503, "The diff is nested too deep");
    }
    if diff.is_empty() {
        return wrong(4770500, "Expected diff to be non-empty");
    }
    let mut known = HashSet::new();
    let mut twice = |name: &str| match known.insert(name.to_owned()) {
        true => Ok(()),
        false => wrong(4728000, format!("duplicate field name in diff: {name}")),
    };
    let mut before = 0;
    for element in elements(diff) {
        let name = element.name();
        let place = match name {
            "d" => 1,
            "u" => 2,
            "i" => 3,
            _ if name.starts_with('s') => 4,
            _ => 0,
        };
        if place == 0 || place < before || (place == before && place < 4) {
            return wrong(
                4770503,
                format!("Unexpected section: {name} in document diff"),
            );
        }
        before = place;
        let section = section(name, element.value())?;
        match name.strip_prefix('s') {
            Some(path) => {
                twice(path)?;
                check_below(section, depth + 1)?;
            }
            None => elements(section).try_for_each(|field| twice(field.name()))?,
        }
    }
    Ok(())
}

fn check_below(diff: &RawDocument, depth: usize) -> Result<(), QueryError> {
    let mut sections = elements(diff);
    let header = sections.next().filter(|header| header.name() == "a");
    let Some(header) = header else {
        return check_document(diff, depth);
    };
    if header.value() != RawBsonRef::Boolean(true) {
        return wrong(4770520, "Expected array header to be value true");
    }
    for (at, element) in sections.enumerate() {
        let (name, value) = (element.name(), element.value());
        if name == "l" && at == 0 {
            if !matches!(value, RawBsonRef::Int32(_)) {
                return wrong(4770507, "Expected l section to be type int");
            }
        } else if name.len() < 2 {
            return wrong(
                4770521,
                format!(
                    "expected field name to be at least two characters long, but found: {name}"
                ),
            );
        } else if name.starts_with('s') {
            check_below(section(name, value)?, depth + 1)?;
        }
    }
    Ok(())
}

fn wrong<T>(code: u32, message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::Location(code), message))
}

/// What becomes of a field.
enum Fate<'d> {
    Deleted,
    Set(RawBsonRef<'d>),
    Below(&'d RawDocument),
}

fn section<'d>(name: &str, value: RawBsonRef<'d>) -> Result<&'d RawDocument, QueryError> {
    match value {
        RawBsonRef::Document(document) => Ok(document),
        _ => wrong(
            4770507,
            format!("Expected {name} section to be type object"),
        ),
    }
}

fn document_with(
    before: &RawDocument,
    diff: &RawDocument,
    depth: usize,
) -> Result<RawDocumentBuf, QueryError> {
    if depth > MAX_STORED_DEPTH {
        return wrong(4770503, "The diff is nested too deep");
    }
    if diff.is_empty() {
        return wrong(4770500, "Expected diff to be non-empty");
    }
    let mut fates = HashMap::new();
    let mut inserted = Vec::new();
    for element in elements(diff) {
        let name = element.name();
        match (name, name.strip_prefix('s')) {
            ("d", _) => {
                let deleted = elements(section(name, element.value())?);
                fates.extend(deleted.map(|field| (field.name().to_owned(), Fate::Deleted)));
            }
            ("u", _) => {
                for field in elements(section(name, element.value())?) {
                    fates.insert(field.name().to_owned(), Fate::Set(field.value()));
                    inserted.push(field);
                }
            }
            ("i", _) => {
                for field in elements(section(name, element.value())?) {
                    // It goes to the end, also where there is one already.
                    fates.insert(field.name().to_owned(), Fate::Deleted);
                    inserted.push(field);
                }
            }
            (_, Some(path)) => {
                let below = section(name, element.value())?;
                fates.insert(path.to_owned(), Fate::Below(below));
            }
            _ => {
                return wrong(
                    4770503,
                    format!("Unexpected section: {name} in document diff"),
                );
            }
        }
    }
    let mut after = DocumentWriter::with_capacity(before.as_bytes().len() + diff.as_bytes().len());
    for element in elements(before) {
        match fates.get(element.name()) {
            None => after.append_element(&element),
            Some(Fate::Deleted) => {}
            Some(Fate::Set(value)) => after.append(element.name(), *value),
            Some(Fate::Below(diff)) => {
                let value = value_with(element.value(), diff, depth + 1)?;
                after.append(element.name(), value.as_raw_bson_ref());
            }
        }
    }
    for element in inserted {
        let name = element.name();
        let is_there =
            matches!(fates.get(name), Some(Fate::Set(_))) && field(before, name).is_some();
        if !is_there {
            after.append_element(&element);
        }
    }
    Ok(after.finish())
}

fn value_with(
    before: RawBsonRef<'_>,
    diff: &RawDocument,
    depth: usize,
) -> Result<RawBson, QueryError> {
    let is_of_array = matches!(field(diff, "a"), Some(RawBsonRef::Boolean(true)));
    Ok(match (before, is_of_array) {
        (RawBsonRef::Document(before), false) => {
            RawBson::Document(document_with(before, diff, depth)?)
        }
        (RawBsonRef::Array(before), true) => RawBson::Array(array_with(before, diff, depth)?),
        _ => RawBson::Null,
    })
}

fn array_with(
    before: &RawArray,
    diff: &RawDocument,
    depth: usize,
) -> Result<RawArrayBuf, QueryError> {
    if depth > MAX_STORED_DEPTH {
        return wrong(4770503, "The diff is nested too deep");
    }
    let mut after: Vec<RawBson> = items(before).map(|item| item.value().into()).collect();
    for element in elements(diff) {
        let (name, value) = (element.name(), element.value());
        match name {
            "a" => continue,
            "l" => {
                let length =
                    banyan_document::Number::from_raw(value).map(|n| n.to_i64_saturating());
                let Some(length) = length.and_then(|length| usize::try_from(length).ok()) else {
                    let kind = kind::name(&value);
                    return wrong(
                        4770517,
                        format!("Expected l section to be a number in array diff, got {kind}"),
                    );
                };
                resize(&mut after, length)?;
                continue;
            }
            _ => {}
        }
        let (letter, position) = match name.split_at_checked(1) {
            Some((letter @ ("u" | "s"), position)) => (letter, position.parse::<usize>().ok()),
            _ => (name, None),
        };
        let Some(position) = position else {
            return wrong(4770512, format!("Unexpected section: {name} in array diff"));
        };
        if position >= after.len() {
            resize(&mut after, position + 1)?;
        }
        let Some(item) = after.get_mut(position) else {
            continue;
        };
        *item = match letter {
            "u" => value.into(),
            _ => {
                let below = section(name, value)?;
                value_with(item.as_raw_bson_ref(), below, depth + 1)?
            }
        };
    }
    Ok(after.into_iter().collect())
}

fn resize(items: &mut Vec<RawBson>, length: usize) -> Result<(), QueryError> {
    if length > ITEMS_MAX {
        let message = "The array would hold too many items";
        return Err(QueryError::new(ErrorKind::BadValue, message));
    }
    items.resize(length, RawBson::Null);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn applied(diff: RawDocumentBuf) -> Result<RawDocumentBuf, QueryError> {
        let before = rawdoc! {
            "_id": 1, "a": 1, "b": 2, "s": { "x": 1, "y": 2 }, "arr": [1, 2, 3, { "q": 1 }],
        };
        apply_oplog(&before, &diff)
    }

    #[test]
    fn each_section_does_what_it_says() {
        let after = applied(rawdoc! {
            "d": { "a": false }, "u": { "b": 3 }, "i": { "n": 1 }, "ss": { "u": { "x": 5 } },
            "sarr": { "a": true, "l": 3, "u1": 9 },
        });
        let expected = rawdoc! {
            "_id": 1, "b": 3, "s": { "x": 5, "y": 2 }, "arr": [1, 9, 3], "n": 1,
        };
        assert_eq!(after.unwrap(), expected);
    }

    #[test]
    fn positions_behind_the_end_are_filled_with_nulls() {
        let after = applied(rawdoc! { "sarr": { "a": true, "s3": { "i": { "w": 1 } }, "u5": 7 } });
        let arr = after.unwrap().get("arr").unwrap().map(RawBson::from);
        let expected = rawdoc! { "x": [1, 2, 3, { "q": 1, "w": 1 }, (RawBson::Null), 7] };
        assert_eq!(arr, expected.get("x").unwrap().map(RawBson::from));
        let grown = applied(rawdoc! { "sarr": { "a": true, "u99999999": 7 } });
        assert_eq!(grown.unwrap_err().kind, ErrorKind::BadValue);
    }

    #[test]
    fn what_is_no_longer_of_that_kind_is_null() {
        let after = applied(rawdoc! { "ss": { "a": true, "u6": 1 }, "snope": { "u": { "x": 5 } } });
        let expected = rawdoc! {
            "_id": 1, "a": 1, "b": 2, "s": (RawBson::Null), "arr": [1, 2, 3, { "q": 1 }],
        };
        assert_eq!(after.unwrap(), expected);
    }

    #[test]
    fn what_is_no_difference_is_refused() {
        for (diff, code) in [
            (rawdoc! {}, 4770500),
            (rawdoc! { "x": 1 }, 4770503),
            (rawdoc! { "u": 5 }, 4770507),
        ] {
            assert_eq!(applied(diff).unwrap_err().kind, ErrorKind::Location(code));
        }
    }
}
