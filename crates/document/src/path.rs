//! Dotted paths and the two ways to follow them.
//!
//! [`get`] follows fields only. [`visit`] goes through arrays as MongoDB's queries do: an array on
//! the way stands for each of its documents (and a numeric part for the item at that position), an
//! array at the end for each of its items and for itself.

use std::fmt;
use std::ops::ControlFlow;

use bson::{RawArray, RawBsonRef, RawDocument};
use thiserror::Error;

use crate::element::{field, items};

/// A path such as `a.b.0`, split at its dots. Never empty.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    parts: Box<[Box<str>]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PathError {
    #[error("FieldPath cannot be constructed with empty string")]
    Empty,
    #[error("FieldPath field names may not contain '\\0'.")]
    ZeroByte,
    #[error("FieldPath is too long")]
    TooLong,
}

/// More parts than a document can have levels lead nowhere.
const PARTS_MAX: usize = 200;

impl Path {
    /// Empty parts are kept: `a..b` reads a field whose name is empty.
    pub fn parse(text: &str) -> Result<Path, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.contains('\0') {
            return Err(PathError::ZeroByte);
        }
        let parts: Box<[Box<str>]> = text.split('.').map(Box::from).collect();
        if parts.len() > PARTS_MAX {
            return Err(PathError::TooLong);
        }
        Ok(Path { parts })
    }

    /// A name of one part, which may be empty.
    pub fn field(name: &str) -> Path {
        Path {
            parts: Box::new([Box::from(name)]),
        }
    }

    pub fn parts(&self) -> &[Box<str>] {
        &self.parts
    }

    /// The first part.
    pub fn head(&self) -> &str {
        self.parts.first().map_or("", |part| part)
    }

    /// Whether a part may name an item of an array.
    pub fn has_position(&self) -> bool {
        self.parts.iter().any(|part| position(part).is_some())
    }

    /// The path that leads along `self` and then along `below`.
    pub fn join(&self, below: &Path) -> Path {
        let parts = self.parts.iter().chain(&below.parts);
        Path {
            parts: parts.cloned().collect(),
        }
    }

    /// Whether `self` is `other` or lies above it.
    pub fn is_prefix_of(&self, other: &Path) -> bool {
        other.parts.starts_with(&self.parts)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.parts.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Path({self})")
    }
}

/// The position that a part names: digits without a leading zero.
pub fn position(part: &str) -> Option<usize> {
    let digits = part.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = part.len() == 1 || !part.starts_with('0');
    if digits && canonical && part.len() <= 9 {
        part.parse().ok()
    } else {
        None
    }
}

/// Follows documents only; nothing is found behind an array.
pub fn get<'a>(document: &'a RawDocument, path: &Path) -> Option<RawBsonRef<'a>> {
    let (last, above) = path.parts.split_last()?;
    let mut document = document;
    for part in above {
        document = field(document, part)?.as_document()?;
    }
    field(document, last)
}

/// Calls `f` with each value that `localField` of a `$lookup` and the key of a `distinct` stand for:
/// an array at the end stands for its items, one on the way for its documents, or for one item
/// where the next part is its position. What is missing is passed over.
pub fn each_value<'a>(
    document: &'a RawDocument,
    parts: &[Box<str>],
    f: &mut impl FnMut(RawBsonRef<'a>),
) {
    if let Some((first, rest)) = parts.split_first()
        && let Some(value) = field(document, first)
    {
        each_value_below(value, rest, f);
    }
}

fn each_value_below<'a>(
    value: RawBsonRef<'a>,
    parts: &[Box<str>],
    f: &mut impl FnMut(RawBsonRef<'a>),
) {
    match (value, parts.split_first()) {
        (RawBsonRef::Array(array), None) => items(array).for_each(|item| f(item.value())),
        (value, None) => f(value),
        (RawBsonRef::Document(inner), Some(_)) => each_value(inner, parts, f),
        (RawBsonRef::Array(array), Some((part, rest))) => {
            if part.bytes().all(|byte| byte.is_ascii_digit()) {
                let item = part.parse().ok().and_then(|at| items(array).nth(at));
                if let Some(item) = item {
                    each_value_below(item.value(), rest, f);
                }
                return;
            }
            for item in items(array) {
                if let RawBsonRef::Document(inner) = item.value() {
                    each_value(inner, parts, f);
                }
            }
        }
        (_, Some(_)) => {}
    }
}

/// One value that a path stands for.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// `None` where a document on the way lacks the field.
    pub value: Option<RawBsonRef<'a>>,
    /// Where the value lies in the outermost array whose items were tried one by one for it.
    pub position: Option<usize>,
    /// The array at the end of the path itself, after its items.
    pub whole_array: bool,
}

/// What an array at the end of a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// Its items, then itself.
    Items,
    /// Itself alone.
    Whole,
}

/// Calls `f` with each value that the path stands for, until it breaks.
pub fn visit<'a>(
    document: &'a RawDocument,
    path: &Path,
    f: &mut dyn FnMut(Visit<'a>) -> ControlFlow<()>,
) {
    let _ = visit_with(document, &path.parts, Leaf::Items, f);
}

/// [`visit`] with the choice of what arrays at the end stand for, and without dynamic calls.
pub fn visit_with<'a, F>(
    document: &'a RawDocument,
    parts: &[Box<str>],
    leaf: Leaf,
    f: &mut F,
) -> ControlFlow<()>
where
    F: FnMut(Visit<'a>) -> ControlFlow<()> + ?Sized,
{
    visit_document(document, parts, leaf, None, f)
}

fn visit_document<'a, F>(
    document: &'a RawDocument,
    parts: &[Box<str>],
    leaf: Leaf,
    position: Option<usize>,
    f: &mut F,
) -> ControlFlow<()>
where
    F: FnMut(Visit<'a>) -> ControlFlow<()> + ?Sized,
{
    let mut document = document;
    let mut parts = parts;
    while let Some((part, rest)) = parts.split_first() {
        let value = field(document, part);
        match value {
            Some(RawBsonRef::Array(array)) => {
                if rest.is_empty() && leaf == Leaf::Whole {
                    return f(Visit {
                        value,
                        position,
                        whole_array: false,
                    });
                }
                visit_array(array, rest, leaf, position, f)?;
                if rest.is_empty() {
                    return f(Visit {
                        value,
                        position,
                        whole_array: true,
                    });
                }
                return ControlFlow::Continue(());
            }
            Some(RawBsonRef::Document(inner)) if !rest.is_empty() => document = inner,
            // A scalar on the way has no fields: the path is missing.
            Some(_) if !rest.is_empty() => break,
            _ => {
                return f(Visit {
                    value,
                    position,
                    whole_array: false,
                });
            }
        }
        parts = rest;
    }
    f(Visit {
        value: None,
        position,
        whole_array: false,
    })
}

fn visit_array<'a, F>(
    array: &'a RawArray,
    parts: &[Box<str>],
    leaf: Leaf,
    outer: Option<usize>,
    f: &mut F,
) -> ControlFlow<()>
where
    F: FnMut(Visit<'a>) -> ControlFlow<()> + ?Sized,
{
    let wanted = parts.first().and_then(|part| self::position(part));
    for (index, item) in items(array).enumerate() {
        let position = outer.or(Some(index));
        let value = item.value();
        let Some((_, rest)) = parts.split_first() else {
            f(Visit {
                value: Some(value),
                position,
                whole_array: false,
            })?;
            continue;
        };
        if let RawBsonRef::Document(inner) = value {
            visit_document(inner, parts, leaf, position, f)?;
        }
        if wanted != Some(index) {
            continue;
        }
        match value {
            // An item named by its position is not taken apart, even when it is an array.
            _ if rest.is_empty() => {
                f(Visit {
                    value: Some(value),
                    position: outer,
                    whole_array: false,
                })?;
            }
            RawBsonRef::Document(inner) => visit_document(inner, rest, leaf, outer, f)?,
            RawBsonRef::Array(inner) => visit_array(inner, rest, leaf, outer, f)?,
            _ => {}
        }
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Bson, doc, rawdoc};

    fn visited(document: &bson::Document, path: &str, leaf: Leaf) -> Vec<String> {
        let raw = bson::RawDocumentBuf::try_from(document).unwrap();
        let path = Path::parse(path).unwrap();
        let mut seen = Vec::new();
        let _ = visit_with(&raw, path.parts(), leaf, &mut |visit: Visit<'_>| {
            let value = match visit.value {
                Some(value) => Bson::try_from(value).unwrap().to_string(),
                None => "missing".into(),
            };
            let position = visit.position.map_or(String::new(), |p| format!("@{p}"));
            let whole = if visit.whole_array { " whole" } else { "" };
            seen.push(format!("{value}{position}{whole}"));
            ControlFlow::Continue(())
        });
        seen
    }

    #[test]
    fn arrays_at_the_end() {
        let document = doc! {"a": [1, [2]], "e": []};
        assert_eq!(
            visited(&document, "a", Leaf::Items),
            ["1@0", "[2]@1", "[1, [2]] whole"]
        );
        assert_eq!(visited(&document, "a", Leaf::Whole), ["[1, [2]]"]);
        assert_eq!(visited(&document, "e", Leaf::Items), ["[] whole"]);
    }

    #[test]
    fn arrays_on_the_way() {
        let document = doc! {"a": [{"b": 1}, {"b": [2, 3]}, {"c": 1}, 5, [{"b": 9}]]};
        let expected = ["1@0", "2@1", "3@1", "[2, 3]@1 whole", "missing@2"];
        assert_eq!(visited(&document, "a.b", Leaf::Items), expected);
        assert_eq!(visited(&document, "a.4.b", Leaf::Items)[3..], ["9@0"]);
    }

    #[test]
    fn positions() {
        let document = doc! {"a": [[1, 2], 7], "n": {"0": "x"}};
        assert_eq!(visited(&document, "a.0", Leaf::Items), ["[1, 2]"]);
        assert_eq!(visited(&document, "a.0.1", Leaf::Items), ["2"]);
        assert_eq!(visited(&document, "a.5", Leaf::Items), [""; 0]);
        assert_eq!(visited(&document, "n.0", Leaf::Items), ["\"x\""]);
        assert_eq!(position("10"), Some(10));
        assert_eq!(position("01"), None);
        assert_eq!(position("99999999999999"), None);
    }

    #[test]
    fn each_value_takes_positions_for_nothing_else() {
        let values = |document: bson::RawDocumentBuf, path: &str| {
            let path = Path::parse(path).unwrap();
            let mut seen = Vec::new();
            each_value(&document, path.parts(), &mut |value| {
                seen.push(Bson::try_from(value).unwrap().to_string());
            });
            seen
        };
        assert_eq!(values(rawdoc! {"a": [[1, 2], 3]}, "a.0"), ["1", "2"]);
        assert_eq!(values(rawdoc! {"a": [{"0": 5}]}, "a.0"), ["{ \"0\": 5 }"]);
        assert_eq!(
            values(rawdoc! {"a": [{"b": 5}, 1, {"b": [6]}]}, "a.b"),
            ["5", "6"]
        );
        assert_eq!(values(rawdoc! {"a": {"0": 5}}, "a.0"), ["5"]);
        assert_eq!(values(rawdoc! {"a": [1]}, "a.3"), [""; 0]);
    }

    #[test]
    fn missing() {
        let document = doc! {"a": 5, "b": {"c": {}}};
        for path in ["a.b", "x", "b.c.d", "b.x.y"] {
            assert_eq!(visited(&document, path, Leaf::Items), ["missing"]);
        }
    }

    #[test]
    fn get_follows_documents_only() {
        let document = rawdoc! {"a": {"b": 1}, "l": [{"b": 1}]};
        let at = |path: &str| get(&document, &Path::parse(path).unwrap());
        assert_eq!(at("a.b"), Some(RawBsonRef::Int32(1)));
        assert_eq!(at("l.b"), None);
        assert_eq!(at("a.x"), None);
    }

    #[test]
    fn refuses_what_no_field_can_be_named() {
        assert_eq!(Path::parse(""), Err(PathError::Empty));
        assert_eq!(Path::parse("a\0b"), Err(PathError::ZeroByte));
        assert_eq!(Path::parse("a.b.c").unwrap().to_string(), "a.b.c");
    }
}
