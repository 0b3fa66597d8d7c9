//! What a filter says about single fields, as far as an index can use it.
//!
//! The filter has been parsed and accepted already; here its document is read once more, and what
//! no index can help with is passed over. The result is a conjunction: every predicate holds for
//! every document that matches.

use banyan_document::is_true;
use bson::{RawBsonRef, RawDocument};

/// Everything that has to hold at once.
#[derive(Debug, Default)]
pub struct Conjunction<'a> {
    pub predicates: Vec<Predicate<'a>>,
    /// Each entry is an `$or`: one of its conjunctions holds.
    pub disjunctions: Vec<Vec<Conjunction<'a>>>,
    /// Whether the predicates say all that the filter says.
    pub complete: bool,
}

#[derive(Debug, Clone)]
pub struct Predicate<'a> {
    pub path: String,
    pub test: Test<'a>,
    /// Predicates of one `$elemMatch` hold for the same element of an array.
    pub element: Option<usize>,
}

#[derive(Debug, Clone)]
pub enum Test<'a> {
    Equals(RawBsonRef<'a>),
    In(Vec<RawBsonRef<'a>>),
    Greater {
        than: RawBsonRef<'a>,
        or_equal: bool,
    },
    Less {
        than: RawBsonRef<'a>,
        or_equal: bool,
    },
    Exists,
    /// `{$exists: false}`, which an index knows as null.
    Missing,
    /// A regular expression that only matches strings with this prefix.
    Prefix(String),
    /// Says nothing about where in an index to look; the field exists for what matches.
    Other,
}

impl<'a> Conjunction<'a> {
    pub fn of(filter: &'a RawDocument) -> Conjunction<'a> {
        let mut conjunction = Conjunction {
            complete: true,
            ..Conjunction::default()
        };
        let mut elements = 0;
        conjunction.take_filter(filter, &mut elements);
        conjunction
    }

    fn take_filter(&mut self, filter: &'a RawDocument, elements: &mut usize) {
        for (name, value) in filter.iter().flatten() {
            match (name.as_str(), value) {
                ("$and", RawBsonRef::Array(parts)) => {
                    for part in parts.into_iter().flatten() {
                        match part {
                            RawBsonRef::Document(part) => self.take_filter(part, elements),
                            _ => self.complete = false,
                        }
                    }
                }
                ("$or", RawBsonRef::Array(parts)) => {
                    self.complete = false;
                    let parts = parts
                        .into_iter()
                        .flatten()
                        .filter_map(|part| part.as_document());
                    self.disjunctions.push(parts.map(Conjunction::of).collect());
                }
                ("$comment", _) => {}
                (name, _) if name.starts_with('$') => self.complete = false,
                (path, value) => self.take_path(path, value, None, elements),
            }
        }
    }

    fn push(&mut self, path: &str, test: Test<'a>, element: Option<usize>) {
        self.predicates.push(Predicate {
            path: path.to_string(),
            test,
            element,
        });
    }

    fn take_path(
        &mut self,
        path: &str,
        value: RawBsonRef<'a>,
        element: Option<usize>,
        elements: &mut usize,
    ) {
        match value {
            RawBsonRef::Document(operators) if is_operators(operators) => {
                for (operator, operand) in operators.iter().flatten() {
                    self.take_operator(path, operator.as_str(), operand, element, elements);
                }
            }
            RawBsonRef::RegularExpression(regex) => {
                self.complete = false;
                let test = prefix_test(regex.pattern.as_str(), regex.options.as_str());
                self.push(path, test, element);
            }
            value => self.push(path, Test::Equals(value), element),
        }
    }

    fn take_operator(
        &mut self,
        path: &str,
        operator: &str,
        operand: RawBsonRef<'a>,
        element: Option<usize>,
        elements: &mut usize,
    ) {
        let test = match (operator, operand) {
            ("$eq", value) => Test::Equals(value),
            ("$gt", than) => Test::Greater {
                than,
                or_equal: false,
            },
            ("$gte", than) => Test::Greater {
                than,
                or_equal: true,
            },
            ("$lt", than) => Test::Less {
                than,
                or_equal: false,
            },
            ("$lte", than) => Test::Less {
                than,
                or_equal: true,
            },
            ("$in", RawBsonRef::Array(values)) => {
                let values: Vec<_> = values.into_iter().flatten().collect();
                let regex = |v: &RawBsonRef<'_>| matches!(v, RawBsonRef::RegularExpression(_));
                if values.iter().any(regex) {
                    self.complete = false;
                    Test::Other
                } else {
                    Test::In(values)
                }
            }
            ("$exists", flag) => match is_true(flag) {
                true => Test::Exists,
                false => Test::Missing,
            },
            ("$regex", pattern) => {
                self.complete = false;
                match pattern {
                    RawBsonRef::RegularExpression(regex) => {
                        prefix_test(regex.pattern.as_str(), regex.options.as_str())
                    }
                    // `$options` stands beside it and may change what the prefix means.
                    _ => Test::Other,
                }
            }
            ("$options", _) => return,
            ("$all", RawBsonRef::Array(values)) => {
                self.complete = false;
                match values.into_iter().flatten().next() {
                    Some(RawBsonRef::Document(_) | RawBsonRef::RegularExpression(_)) | None => {
                        return;
                    }
                    // Each of them has to be there, so looking for one of them finds all.
                    Some(first) => Test::Equals(first),
                }
            }
            ("$elemMatch", RawBsonRef::Document(inner)) => {
                self.complete = false;
                *elements += 1;
                self.take_element_match(path, inner, *elements, elements);
                return;
            }
            ("$type" | "$mod" | "$size" | "$bitsAllSet" | "$bitsAnySet", _) => {
                self.complete = false;
                Test::Other
            }
            // `$ne`, `$nin`, `$not` and whatever else also match documents without the field.
            _ => {
                self.complete = false;
                return;
            }
        };
        self.push(path, test, element);
    }

    fn take_element_match(
        &mut self,
        path: &str,
        inner: &'a RawDocument,
        element: usize,
        elements: &mut usize,
    ) {
        if is_operators(inner) {
            for (operator, operand) in inner.iter().flatten() {
                self.take_operator(path, operator.as_str(), operand, Some(element), elements);
            }
            return;
        }
        for (name, value) in inner.iter().flatten() {
            if !name.as_str().starts_with('$') {
                let path = format!("{path}.{}", name.as_str());
                self.take_path(&path, value, Some(element), elements);
            }
        }
    }
}

/// Whether a document in a field's place holds operators and not a value.
pub fn is_operators(document: &RawDocument) -> bool {
    match document.iter().next() {
        Some(Ok((name, _))) => {
            let name = name.as_str();
            name.starts_with('$') && !matches!(name, "$ref" | "$id" | "$db")
        }
        _ => false,
    }
}

/// The literal characters that every match begins with.
fn prefix_test<'a>(pattern: &str, options: &str) -> Test<'a> {
    let Some(rest) = pattern.strip_prefix('^') else {
        return Test::Other;
    };
    // An alternative may begin otherwise; options may change what a letter matches.
    if !options.is_empty() || rest.contains('|') {
        return Test::Other;
    }
    let special = |c: char| "\\^$.[]()?*+{}#".contains(c);
    let literal = &rest[..rest.find(special).unwrap_or(rest.len())];
    let mut prefix = literal.to_string();
    // `ab*` does not demand the b.
    if rest[literal.len()..].starts_with(['?', '*', '{']) {
        prefix.pop();
    }
    if prefix.is_empty() {
        Test::Other
    } else {
        Test::Prefix(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn predicates_come_out_of_nested_conjunctions() {
        let filter = rawdoc! {
            "a": 1,
            "$and": [ { "b": { "$gt": 1, "$lte": 5 } }, { "c": { "$in": [1, 2] } } ],
            "d": { "e": 1 },
        };
        let conjunction = Conjunction::of(&filter);
        assert!(conjunction.complete);
        let paths: Vec<_> = conjunction
            .predicates
            .iter()
            .map(|p| p.path.as_str())
            .collect();
        assert_eq!(paths, ["a", "b", "b", "c", "d"]);
    }

    #[test]
    fn what_also_matches_missing_fields_yields_nothing() {
        let filter = rawdoc! { "a": { "$ne": 1 }, "$expr": { "$eq": ["$b", 1] } };
        let conjunction = Conjunction::of(&filter);
        assert!(!conjunction.complete);
        assert!(conjunction.predicates.is_empty());
    }

    #[test]
    fn a_regular_expression_gives_its_prefix() {
        let prefix = |pattern: &str| match prefix_test(pattern, "") {
            Test::Prefix(prefix) => Some(prefix),
            _ => None,
        };
        assert_eq!(prefix("^abc"), Some("abc".into()));
        assert_eq!(prefix("^abc*d"), Some("ab".into()));
        assert_eq!(prefix("^a.c"), Some("a".into()));
        assert_eq!(prefix("abc"), None);
        assert_eq!(prefix("^a|b"), None);
        assert_eq!(prefix("^.*"), None);
    }
}
