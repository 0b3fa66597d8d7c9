//! Where along one field of an index the matching values lie.

use std::cmp::Ordering;

use banyan_document::compare::compare;
use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, Timestamp};

use super::conditions::Test;

/// A range of values in MongoDB's comparison order.
#[derive(Debug, Clone)]
pub struct Interval<'a> {
    pub lower: End<'a>,
    pub upper: End<'a>,
}

#[derive(Debug, Clone)]
pub struct End<'a> {
    pub value: Value<'a>,
    pub inclusive: bool,
}

/// A value of the filter, or one that was made from it.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    Given(RawBsonRef<'a>),
    Text(String),
}

impl Value<'_> {
    pub fn get(&self) -> RawBsonRef<'_> {
        match self {
            Value::Given(value) => *value,
            Value::Text(text) => RawBsonRef::String(text),
        }
    }
}

const EMPTY_DOCUMENT: &[u8] = &[5, 0, 0, 0, 0];
/// `{"": []}`.
const EMPTY_ARRAY: &[u8] = &[12, 0, 0, 0, 4, 0, 5, 0, 0, 0, 0, 0];

impl<'a> Interval<'a> {
    pub fn new(
        lower: RawBsonRef<'a>,
        lower_inclusive: bool,
        upper: RawBsonRef<'a>,
        upper_inclusive: bool,
    ) -> Interval<'a> {
        Interval {
            lower: End {
                value: Value::Given(lower),
                inclusive: lower_inclusive,
            },
            upper: End {
                value: Value::Given(upper),
                inclusive: upper_inclusive,
            },
        }
    }

    pub fn point(value: RawBsonRef<'a>) -> Interval<'a> {
        Interval::new(value, true, value, true)
    }

    pub fn full() -> Interval<'a> {
        Interval::new(RawBsonRef::MinKey, true, RawBsonRef::MaxKey, true)
    }

    pub fn is_point(&self) -> bool {
        self.lower.inclusive
            && self.upper.inclusive
            && compare(self.lower.value.get(), self.upper.value.get()).is_eq()
    }

    pub fn is_full(&self) -> bool {
        matches!(self.lower.value.get(), RawBsonRef::MinKey)
            && matches!(self.upper.value.get(), RawBsonRef::MaxKey)
            && self.lower.inclusive
            && self.upper.inclusive
    }

    fn is_empty(&self) -> bool {
        match compare(self.lower.value.get(), self.upper.value.get()) {
            Ordering::Less => false,
            Ordering::Equal => !(self.lower.inclusive && self.upper.inclusive),
            Ordering::Greater => true,
        }
    }

    pub fn intersect(&self, other: &Interval<'a>) -> Option<Interval<'a>> {
        let lower = match compare(self.lower.value.get(), other.lower.value.get()) {
            Ordering::Greater => &self.lower,
            Ordering::Less => &other.lower,
            Ordering::Equal if self.lower.inclusive => &other.lower,
            Ordering::Equal => &self.lower,
        };
        let upper = match compare(self.upper.value.get(), other.upper.value.get()) {
            Ordering::Less => &self.upper,
            Ordering::Greater => &other.upper,
            Ordering::Equal if self.upper.inclusive => &other.upper,
            Ordering::Equal => &self.upper,
        };
        let both = Interval {
            lower: lower.clone(),
            upper: upper.clone(),
        };
        (!both.is_empty()).then_some(both)
    }

    /// As `explain` writes it: `[1, 5)`.
    pub fn describe(&self) -> String {
        format!(
            "{}{}, {}{}",
            if self.lower.inclusive { '[' } else { '(' },
            describe_value(self.lower.value.get()),
            describe_value(self.upper.value.get()),
            if self.upper.inclusive { ']' } else { ')' },
        )
    }
}

fn describe_value(value: RawBsonRef<'_>) -> String {
    match value {
        RawBsonRef::MinKey => "MinKey".into(),
        RawBsonRef::MaxKey => "MaxKey".into(),
        RawBsonRef::Null => "null".into(),
        RawBsonRef::Undefined => "undefined".into(),
        RawBsonRef::String(text) => format!("\"{text}\""),
        RawBsonRef::Double(number) if number.is_infinite() => {
            if number > 0.0 {
                "inf.0".into()
            } else {
                "-inf.0".into()
            }
        }
        RawBsonRef::Double(number) if number.fract() == 0.0 => format!("{number:.1}"),
        RawBsonRef::Double(number) => number.to_string(),
        RawBsonRef::Int32(number) => number.to_string(),
        RawBsonRef::Int64(number) => number.to_string(),
        RawBsonRef::Boolean(value) => value.to_string(),
        RawBsonRef::ObjectId(id) => format!("ObjectId('{id}')"),
        RawBsonRef::DateTime(date) => format!("new Date({})", date.timestamp_millis()),
        RawBsonRef::Document(document) if document.is_empty() => "{}".into(),
        RawBsonRef::Array(array) if array.is_empty() => "[]".into(),
        other => bson::Bson::try_from(other)
            .map(|bson| bson.to_string())
            .unwrap_or_default(),
    }
}

/// The intervals that a test confines a field to, in order.
#[derive(Debug, Clone)]
pub struct Confined<'a> {
    pub intervals: Vec<Interval<'a>>,
    /// Whether every value inside passes the test, so that it need not be looked at again.
    pub exact: bool,
    /// Whether a document without the field can pass.
    pub matches_missing: bool,
}

/// Where a test's values lie in an index. `None`: anywhere.
pub fn confine<'a>(test: &Test<'a>, multikey: bool) -> Option<Confined<'a>> {
    match test {
        Test::Equals(value) => equals(*value, multikey),
        Test::In(values) => any_of(values, multikey),
        Test::Greater { than, or_equal } | Test::Less { than, or_equal }
            if is_null(*than) || is_nan(*than) =>
        {
            // Nothing compares with them but themselves.
            match or_equal {
                true => equals(*than, multikey),
                false => Some(exactly(Vec::new())),
            }
        }
        Test::Greater { than, or_equal } => {
            let (_, _, upper, upper_inclusive) = brackets(*than)?;
            let interval = Interval::new(*than, *or_equal, upper, upper_inclusive);
            Some(exactly(vec![interval]))
        }
        Test::Less { than, or_equal } => {
            let (lower, lower_inclusive, _, _) = brackets(*than)?;
            let interval = Interval::new(lower, lower_inclusive, *than, *or_equal);
            Some(exactly(vec![interval]))
        }
        Test::Prefix(prefix) => beginning_with(prefix),
        Test::Missing if !multikey => Some(Confined {
            intervals: vec![null()],
            exact: false,
            matches_missing: true,
        }),
        Test::Missing | Test::Exists | Test::Other => None,
    }
}

fn exactly(intervals: Vec<Interval<'_>>) -> Confined<'_> {
    Confined {
        intervals,
        exact: true,
        matches_missing: false,
    }
}

fn any_of<'a>(values: &[RawBsonRef<'a>], multikey: bool) -> Option<Confined<'a>> {
    let mut all = exactly(Vec::new());
    for value in values {
        let one = equals(*value, multikey)?;
        all.intervals.extend(one.intervals);
        all.exact &= one.exact;
        all.matches_missing |= one.matches_missing;
    }
    all.intervals
        .sort_by(|a, b| compare(a.lower.value.get(), b.lower.value.get()));
    all.intervals.dedup_by(|b, a| {
        compare(a.lower.value.get(), b.lower.value.get()).is_eq()
            && compare(a.upper.value.get(), b.upper.value.get()).is_eq()
    });
    Some(all)
}

fn beginning_with<'a>(prefix: &str) -> Option<Confined<'a>> {
    let mut end = prefix.to_owned();
    // The next string after all that begin so; a character has no successor at its end.
    let next = end
        .pop()
        .and_then(|last| char::from_u32(u32::from(last) + 1))?;
    end.push(next);
    let lower = End {
        value: Value::Text(prefix.to_owned()),
        inclusive: true,
    };
    let upper = End {
        value: Value::Text(end),
        inclusive: false,
    };
    Some(Confined {
        intervals: vec![Interval { lower, upper }],
        exact: false,
        matches_missing: false,
    })
}

fn equals<'a>(value: RawBsonRef<'a>, multikey: bool) -> Option<Confined<'a>> {
    let confined = |interval, exact, matches_missing| {
        Some(Confined {
            intervals: vec![interval],
            exact,
            matches_missing,
        })
    };
    match value {
        // What a null looks like in an index of arrays depends on where the array ends.
        RawBsonRef::Null | RawBsonRef::Undefined if multikey => None,
        RawBsonRef::Null | RawBsonRef::Undefined => confined(null(), false, true),
        // An array is indexed by its elements.
        RawBsonRef::Array(_) => None,
        RawBsonRef::MinKey | RawBsonRef::MaxKey => confined(Interval::point(value), false, false),
        value => confined(Interval::point(value), !multikey, false),
    }
}

/// Null, and undefined just before it.
fn null<'a>() -> Interval<'a> {
    Interval::new(RawBsonRef::Undefined, true, RawBsonRef::Null, true)
}

fn is_null(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Null | RawBsonRef::Undefined)
}

fn is_nan(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Double(number) => number.is_nan(),
        RawBsonRef::Decimal128(number) => number.to_string() == "NaN",
        _ => false,
    }
}

/// The ends of the values that compare with this one: `(lower, inclusive, upper, inclusive)`.
fn brackets(
    value: RawBsonRef<'_>,
) -> Option<(RawBsonRef<'static>, bool, RawBsonRef<'static>, bool)> {
    let empty_document = RawDocument::from_bytes(EMPTY_DOCUMENT).ok()?;
    let empty_binary = RawBinaryRef {
        subtype: BinarySubtype::Generic,
        bytes: &[],
    };
    let first_id = ObjectId::from_bytes([0; 12]);
    Some(match value {
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => (
            RawBsonRef::Double(f64::NEG_INFINITY),
            true,
            RawBsonRef::Double(f64::INFINITY),
            true,
        ),
        RawBsonRef::String(_) | RawBsonRef::Symbol(_) => (
            RawBsonRef::String(""),
            true,
            RawBsonRef::Document(empty_document),
            false,
        ),
        RawBsonRef::Document(_) => {
            let holder = RawDocument::from_bytes(EMPTY_ARRAY).ok()?;
            let (_, empty_array) = holder.iter().next()?.ok()?;
            (
                RawBsonRef::Document(empty_document),
                true,
                empty_array,
                false,
            )
        }
        RawBsonRef::Binary(_) => (
            RawBsonRef::Binary(empty_binary),
            true,
            RawBsonRef::ObjectId(first_id),
            false,
        ),
        RawBsonRef::ObjectId(_) => (
            RawBsonRef::ObjectId(first_id),
            true,
            RawBsonRef::ObjectId(ObjectId::from_bytes([0xff; 12])),
            true,
        ),
        RawBsonRef::Boolean(_) => (
            RawBsonRef::Boolean(false),
            true,
            RawBsonRef::Boolean(true),
            true,
        ),
        RawBsonRef::DateTime(_) => (
            RawBsonRef::DateTime(bson::DateTime::MIN),
            true,
            RawBsonRef::DateTime(bson::DateTime::MAX),
            true,
        ),
        RawBsonRef::Timestamp(_) => (
            RawBsonRef::Timestamp(Timestamp {
                time: 0,
                increment: 0,
            }),
            true,
            RawBsonRef::Timestamp(Timestamp {
                time: u32::MAX,
                increment: u32::MAX,
            }),
            true,
        ),
        _ => return None,
    })
}
