//! Indexes over every field, or every one below a path: `{"$**": 1}`, `{"a.$**": 1}`.
//!
//! A key is the path of a value and the value. Documents are followed into their fields and arrays
//! into their items, down to what is neither; an empty document, an empty array and an array
//! directly inside an array are values themselves. A document that holds a field with a dot in its
//! name has a key without a value. Items of an array have its path. Only values are
//! collated: a path is compared by its bytes.

use std::collections::BTreeSet;

use banyan_document::Collator;
use banyan_document::element::{elements, items};
use banyan_document::key::{FieldOrder, Key, KeyBuilder, KeyError, KeyField, KeyPattern, Keys};
use banyan_document::path::{Path, position};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::arrays::ArrayPaths;
use super::index_kind::{IndexKind, KeyLayout, KeyPrefix};

/// What the first field of a key is called.
pub const PATH_FIELD: &str = "$_path";

#[derive(Debug)]
pub(super) struct Wildcard {
    fields: Selection,
    collator: Option<Collator>,
}

/// Which fields are in the index.
#[derive(Debug)]
struct Selection {
    /// These paths with all that is below them; or everything but these.
    paths: Vec<Path>,
    includes: bool,
    /// Whether `_id` is in it; `None`: as any other field is.
    id: Option<bool>,
}

impl Wildcard {
    pub(super) fn of(pattern: &KeyPattern, projection: Option<&RawDocument>) -> Option<Wildcard> {
        if !pattern.is_wildcard() {
            return None;
        }
        let (path, _) = pattern.fields.first()?;
        let above = &path.parts()[..path.parts().len() - 1];
        let fields = match projection {
            _ if !above.is_empty() => Selection {
                paths: Path::parse(&above.join(".")).ok().into_iter().collect(),
                includes: true,
                id: None,
            },
            Some(projection) => Selection::of(projection),
            None => Selection::of(&rawdoc! {}),
        };
        Some(Wildcard {
            fields,
            collator: pattern.collator.clone(),
        })
    }

    /// Hands on the path and value of each key, and the paths of arrays.
    fn walk<'a>(&self, document: &'a RawDocument, found: &mut Found<'a, '_>) {
        let mut path = String::new();
        self.walk_fields(document, &mut path, found);
    }

    fn walk_fields<'a>(
        &self,
        document: &'a RawDocument,
        path: &mut String,
        found: &mut Found<'a, '_>,
    ) {
        let length = path.len();
        for element in elements(document) {
            // No path leads to a field with a dot in its name. The document itself is there, and if
            // it holds nothing else, no other key says so.
            if element.name().contains('.') {
                if length > 0 {
                    self.hand_on(KeyField::Value(RawBsonRef::Undefined), path, found);
                }
                continue;
            }
            if length > 0 {
                path.push('.');
            }
            path.push_str(element.name());
            if self.fields.may_hold(path) {
                self.walk_value(element.value(), path, false, found);
            }
            path.truncate(length);
        }
    }

    fn walk_value<'a>(
        &self,
        value: RawBsonRef<'a>,
        path: &mut String,
        is_item: bool,
        found: &mut Found<'a, '_>,
    ) {
        match value {
            RawBsonRef::Document(inner) if elements(inner).next().is_some() => {
                self.walk_fields(inner, path, found);
            }
            RawBsonRef::Array(array) if !is_item => {
                if self.fields.holds(path) || self.fields.holds_below(path) {
                    (found.array)(path);
                }
                if array.is_empty() {
                    self.hand_on(KeyField::EmptyArray, path, found);
                }
                for item in items(array) {
                    self.walk_value(item.value(), path, true, found);
                }
            }
            value => self.hand_on(KeyField::Value(value), path, found),
        }
    }

    fn hand_on<'a>(&self, value: KeyField<'a>, path: &str, found: &mut Found<'a, '_>) {
        if self.fields.holds(path) {
            (found.value)(path, value);
        }
    }

    fn encode(&self, path: &str, value: KeyField<'_>) -> Key {
        let mut key = KeyBuilder::with_capacity(path.len() + 16);
        key.push_opaque(RawBsonRef::String(path));
        key.push(value, FieldOrder::Ascending, self.collator.as_ref());
        key.finish()
    }
}

/// Who is told of what a document holds.
struct Found<'a, 'f> {
    value: &'f mut dyn FnMut(&str, KeyField<'a>),
    array: &'f mut dyn FnMut(&str),
}

/// A filter may name more paths than can be planned for one by one.
const LAYOUTS_MAX: usize = 64;

impl IndexKind for Wildcard {
    fn keys(&self, document: &RawDocument) -> Result<Keys, KeyError> {
        let (mut keys, mut arrays) = (Vec::new(), BTreeSet::<Box<str>>::new());
        let mut found = Found {
            value: &mut |path, value| keys.push(self.encode(path, value)),
            array: &mut |path| {
                if !arrays.contains(path) {
                    arrays.insert(path.into());
                }
            },
        };
        self.walk(document, &mut found);
        Ok(Keys::of(keys, arrays))
    }

    fn depends_on_pattern_alone(&self) -> bool {
        false
    }

    fn value_of_key(&self, document: &RawDocument, key: &[u8]) -> Option<RawDocumentBuf> {
        let mut shown = None;
        let mut found = Found {
            value: &mut |path, value| {
                if shown.is_none() && self.encode(path, value).bytes == key {
                    let mut values = rawdoc! {};
                    values.append(cstr!("$_path"), path);
                    if let Ok(name) = bson::raw::CString::try_from(path) {
                        values.append(name, value.as_value());
                    }
                    shown = Some(values);
                }
            },
            array: &mut |_| {},
        };
        self.walk(document, &mut found);
        shown
    }

    fn layouts(&self, asked: &[&Path], arrays: &ArrayPaths) -> Vec<KeyLayout> {
        let mut layouts: Vec<KeyLayout> = Vec::new();
        for path in asked {
            if layouts.len() >= LAYOUTS_MAX {
                break;
            }
            let is_known = layouts.iter().any(|known| known.fields[0].0 == **path);
            let paths = paths_in_keys(path, arrays).filter(|_| !is_known);
            let Some(paths) = paths.filter(|paths| paths.iter().all(|p| self.fields.holds(p)))
            else {
                continue;
            };
            let mut layout = |paths, with_below| {
                layouts.push(KeyLayout {
                    prefix: Some(KeyPrefix {
                        field: PATH_FIELD,
                        paths,
                        with_below,
                    }),
                    fields: [((*path).clone(), FieldOrder::Ascending)].into(),
                    is_complete: false,
                });
            };
            let mut highest = paths.clone();
            layout(paths, false);
            // What lies at `a.0` lies below `a`.
            highest.truncate(1);
            if highest.iter().all(|path| self.fields.holds_all_below(path)) {
                layout(highest, true);
            }
        }
        layouts
    }
}

/// The paths that keys have of the values which a filter's path leads to, in order. `None`: they
/// cannot be told, because an item of an array has no more than the array's path in its keys, and an
/// array that is an item is a value of its own, whatever the rest of the path leads to in it.
fn paths_in_keys(path: &Path, arrays: &ArrayPaths) -> Option<Vec<String>> {
    let parts = path.parts();
    let may_be_items = |&at: &usize| {
        position(&parts[at]).is_some() && at > 0 && arrays.are_at(&parts[..at].join("."))
    };
    let last = parts.len() - 1;
    match (0..parts.len()).find(may_be_items) {
        None => Some(vec![path.to_string()]),
        Some(at) if at == last => Some(vec![parts[..last].join("."), path.to_string()]),
        Some(_) => None,
    }
}

impl Selection {
    /// What a projection names. `_id` is in only if it is named.
    fn of(projection: &RawDocument) -> Selection {
        let mut selection = Selection {
            paths: Vec::new(),
            includes: false,
            id: None,
        };
        let mut named = Vec::new();
        name_paths(projection, "", &mut named);
        for (path, includes) in named {
            match Path::parse(&path) {
                Ok(path) if path.parts() == ["_id".into()] => selection.id = Some(includes),
                Ok(path) => {
                    selection.includes = includes;
                    selection.paths.push(path);
                }
                Err(_) => {}
            }
        }
        if selection.paths.is_empty() {
            // `{_id: 1}` alone means nothing else.
            selection.includes = selection.id == Some(true);
        }
        selection.id.get_or_insert(false);
        selection
    }

    /// Whether values at a path are in the index.
    fn holds(&self, path: &str) -> bool {
        if let Some(id) = self.id
            && is_at_or_below(path, "_id")
        {
            return id;
        }
        let named = |known: &Path| is_at_or_below(path, &known.to_string());
        self.paths.iter().any(named) == self.includes
    }

    /// Whether values below a path may be although those at it are not.
    fn holds_below(&self, path: &str) -> bool {
        self.includes
            && self
                .paths
                .iter()
                .any(|known| is_at_or_below(&known.to_string(), path))
    }

    /// Whether all values below a path are.
    fn holds_all_below(&self, path: &str) -> bool {
        let lies_below = |known: &Path| is_at_or_below(&known.to_string(), path);
        self.holds(path) && (self.includes || !self.paths.iter().any(lies_below))
    }

    fn may_hold(&self, path: &str) -> bool {
        self.holds(path) || self.holds_below(path)
    }
}

/// `{a: {b: 1}}` names `a.b`.
fn name_paths(projection: &RawDocument, above: &str, named: &mut Vec<(String, bool)>) {
    for element in elements(projection) {
        let path = match above {
            "" => element.name().to_owned(),
            above => format!("{above}.{}", element.name()),
        };
        match element.value() {
            RawBsonRef::Document(inner) => name_paths(inner, &path, named),
            value => named.push((path, banyan_document::is_true(value))),
        }
    }
}

fn is_at_or_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(key: RawDocumentBuf, projection: Option<RawDocumentBuf>) -> Vec<String> {
        let document = rawdoc! {
            "_id": 1, "a": [1, 2, { "x": 3 }, [4]], "b": { "c": 2, "d": [] }, "e": {}, "f": "s",
        };
        let pattern = KeyPattern::parse(&key).unwrap();
        let kind = Wildcard::of(&pattern, projection.as_deref()).unwrap();
        let keys = kind.keys(&document).unwrap();
        let mut shown: Vec<String> = keys
            .keys
            .iter()
            .map(|key| {
                let values = kind.value_of_key(&document, key).unwrap();
                let text = format!("{:?}", bson::Document::try_from(values).unwrap());
                text.replace("Document({\"$_path\": String(", "")
                    .replace("})", "")
            })
            .collect();
        shown.push(format!("{:?}", keys.arrays));
        shown
    }

    fn paths(key: RawDocumentBuf, projection: Option<RawDocumentBuf>) -> String {
        let mut paths: Vec<String> = shown(key, projection)
            .iter()
            .filter_map(|shown| Some(shown.strip_prefix('"')?.split_once('"')?.0.to_owned()))
            .collect();
        paths.dedup();
        paths.join(" ")
    }

    #[test]
    fn every_value_has_a_key_with_its_path() {
        let all = shown(rawdoc! { "$**": 1 }, None);
        assert_eq!(all.len(), 9, "{all:#?}");
        assert_eq!(all[8], r#"{"a", "b.d"}"#);
        assert_eq!(
            paths(rawdoc! { "$**": 1 }, None),
            "a a.x b.c b.d e f",
            "without _id"
        );
        assert_eq!(paths(rawdoc! { "b.$**": 1 }, None), "b.c b.d");
        assert_eq!(paths(rawdoc! { "_id.$**": 1 }, None), "_id");
    }

    #[test]
    fn a_document_of_dotted_names_alone_has_a_key() {
        let pattern = KeyPattern::parse(&rawdoc! { "$**": 1 }).unwrap();
        let kind = Wildcard::of(&pattern, None).unwrap();
        let keys = |document: RawDocumentBuf| kind.keys(&document).unwrap().keys.len();
        assert_eq!(keys(rawdoc! { "a": { "x.y": 1, "x.z": 2 } }), 1);
        assert_eq!(keys(rawdoc! { "a": { "x.y": 1, "b": 2 } }), 2);
        assert_eq!(keys(rawdoc! { "x.y": 1 }), 0);
    }

    #[test]
    fn an_item_has_the_path_of_its_array_in_its_keys() {
        let layouts = |path: &str, projection: RawDocumentBuf, arrays: &[&str]| {
            let pattern = KeyPattern::parse(&rawdoc! { "$**": 1 }).unwrap();
            let kind = Wildcard::of(&pattern, Some(&projection)).unwrap();
            let arrays = ArrayPaths::of(&arrays.iter().map(|path| Box::from(*path)).collect());
            let layouts = kind.layouts(&[&Path::parse(path).unwrap()], &arrays);
            let prefixes = layouts.into_iter().filter_map(|layout| layout.prefix);
            let shown = prefixes.map(|prefix| {
                let below = if prefix.with_below { " and below" } else { "" };
                prefix.paths.join(",") + below
            });
            shown.collect::<Vec<_>>()
        };
        let all = || rawdoc! { "_id": 0 };
        assert_eq!(layouts("a.0", all(), &[]), ["a.0", "a.0 and below"]);
        assert_eq!(layouts("a.0", all(), &["a"]), ["a,a.0", "a and below"]);
        assert!(layouts("a.0.b", all(), &["a"]).is_empty());
        assert_eq!(layouts("a.0.b", all(), &[]), ["a.0.b", "a.0.b and below"]);
        let part = rawdoc! { "a.q": 0 };
        assert_eq!(layouts("a", part.clone(), &[]), ["a"]);
        assert!(layouts("a.q.r", part, &[]).is_empty());
        assert_eq!(
            layouts("a.b", rawdoc! { "a": 1 }, &[]),
            ["a.b", "a.b and below"]
        );
    }

    #[test]
    fn values_are_collated_and_paths_are_not() {
        let pattern = KeyPattern::parse(&rawdoc! { "$**": 1 }).unwrap();
        let collation = rawdoc! { "locale": "en", "strength": 2 };
        let pattern = pattern.with_collator(Collator::parse(&collation).unwrap());
        let kind = Wildcard::of(&pattern, None).unwrap();
        let keys = |document: RawDocumentBuf| kind.keys(&document).unwrap().keys;
        assert_eq!(keys(rawdoc! { "a": "X" }), keys(rawdoc! { "a": "x" }));
        assert_ne!(keys(rawdoc! { "A": "x" }), keys(rawdoc! { "a": "x" }));
        let mut path = Vec::new();
        banyan_document::key::encode(RawBsonRef::String("a"), &mut path);
        assert!(keys(rawdoc! { "a": "x" })[0].starts_with(&path));
    }

    #[test]
    fn a_projection_says_which_fields_are_in() {
        let with = |projection| paths(rawdoc! { "$**": 1 }, Some(projection));
        assert_eq!(with(rawdoc! { "b.c": 1, "f": true }), "b.c f");
        assert_eq!(with(rawdoc! { "b": { "c": 1 } }), "b.c");
        assert_eq!(with(rawdoc! { "b": 0, "a": 0 }), "e f");
        assert_eq!(with(rawdoc! { "b.c": 0, "_id": 1 }), "_id a a.x b.d e f");
        assert_eq!(with(rawdoc! { "_id": 1 }), "_id");
        assert_eq!(with(rawdoc! { "_id": 0 }), "a a.x b.c b.d e f");
    }
}
