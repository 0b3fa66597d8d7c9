//! Windows: which documents around a document a function looks at.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use bson::{RawBson, RawBsonRef};

use banyan_document::{DocumentWriter, Number, compare};

use super::around::{Around, failed};
use super::partition::Partition;
use super::ranges::Ranges;
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::expression::value::{error, items, show, type_name};
use crate::memory::Holding;

#[derive(Debug)]
pub(super) enum Window {
    /// By the number of documents before and behind.
    Documents(Bound<i64>, Bound<i64>),
    /// By the value of the field that `sortBy` names.
    Range {
        lower: Bound<Offset>,
        upper: Bound<Offset>,
        /// The field; `None` where the order is a descending one.
        position: Option<Expression>,
        dates: bool,
    },
}

#[derive(Debug)]
pub(super) enum Bound<T> {
    Unbounded,
    Current,
    /// So far from the document: negative before it. Of a range an expression over `{v: value}`.
    At(T),
}

const UNITS: &[&str] = &[
    "year",
    "quarter",
    "month",
    "week",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
];

/// A bound as it was written.
enum Written<'a> {
    Unbounded,
    Current,
    Value(RawBsonRef<'a>),
}

impl Window {
    /// All documents of the partition.
    pub fn whole() -> Window {
        Window::Documents(Bound::Unbounded, Bound::Unbounded)
    }

    /// Whether it begins with the first document of the partition.
    pub fn is_left_unbounded(&self) -> bool {
        matches!(
            self,
            Window::Documents(Bound::Unbounded, _)
                | Window::Range {
                    lower: Bound::Unbounded,
                    ..
                }
        )
    }

    /// Where one is given, or else all documents of the partition.
    pub fn parse_or_whole(
        window: Option<RawBsonRef<'_>>,
        around: &Around<'_>,
    ) -> Result<Window, QueryError> {
        window.map_or(Ok(Window::whole()), |window| Window::parse(window, around))
    }

    pub fn parse(window: RawBsonRef<'_>, around: &Around<'_>) -> Result<Window, QueryError> {
        let RawBsonRef::Document(document) = window else {
            return Err(failed("'window' field must be an object"));
        };
        let (mut documents, mut range, mut unit) = (None, None, None);
        for (name, value) in document.iter().map_while(Result::ok) {
            match name.as_str() {
                "documents" => documents = Some(value),
                "range" => range = Some(value),
                "unit" => unit = Some(value),
                _ => {
                    return Err(failed(
                        "'window' field can only contain 'documents' as the only argument or \
                         'range' with an optional 'unit' field",
                    ));
                }
            }
        }
        match (documents, range) {
            (Some(_), Some(_)) => Err(failed(
                "Window bounds can specify either 'documents' or 'unit', not both.",
            )),
            (_, None) if unit.is_some() => Err(failed(
                "Window bounds can only specify 'unit' with range-based bounds.",
            )),
            (Some(bounds), None) => Window::of_documents(bounds, around),
            (None, Some(bounds)) => Window::of_range(bounds, unit, around),
            (None, None) => Ok(Window::whole()),
        }
    }

    fn of_documents(bounds: RawBsonRef<'_>, around: &Around<'_>) -> Result<Window, QueryError> {
        let (lower, upper) = two("documents", bounds)?;
        let (lower, upper) = (document_bound(lower)?, document_bound(upper)?);
        let place = |bound: &Bound<i64>| match bound {
            Bound::Unbounded => None,
            Bound::Current => Some(0),
            Bound::At(at) => Some(*at),
        };
        if let (Some(low), Some(high)) = (place(&lower), place(&upper)) {
            check_order(Number::Int64(low), Number::Int64(high))?;
        }
        let unbounded = matches!((&lower, &upper), (Bound::Unbounded, Bound::Unbounded));
        if !unbounded && !around.has_order() {
            return error(5339901, "Document-based bounds require a sortBy");
        }
        Ok(Window::Documents(lower, upper))
    }

    fn of_range(
        bounds: RawBsonRef<'_>,
        unit: Option<RawBsonRef<'_>>,
        around: &Around<'_>,
    ) -> Result<Window, QueryError> {
        let unit = unit.map(|unit| match unit {
            RawBsonRef::String(unit) if UNITS.contains(&unit) => Ok(unit),
            RawBsonRef::String(unit) => Err(failed(format!("unknown time unit value: {unit}"))),
            _ => Err(failed("'unit' must be a string")),
        });
        let unit = unit.transpose()?;
        let (lower, upper) = two("range", bounds)?;
        let place = |bound: &Written<'_>| match bound {
            Written::Unbounded => None,
            Written::Current => Some(Number::Int32(0)),
            Written::Value(value) => Number::from_raw(*value),
        };
        let ends = (place(&lower), place(&upper));
        let lower = range_bound(lower, unit, around.context)?;
        let upper = range_bound(upper, unit, around.context)?;
        if let (Some(low), Some(high)) = ends {
            check_order(low, high)?;
        }
        let Some([(_, direction)]) = around.order.as_deref() else {
            return error(5339902, "Range-based bounds require sortBy a single field");
        };
        Ok(Window::Range {
            lower,
            upper,
            position: around.position()?.filter(|_| *direction > 0),
            dates: unit.is_some(),
        })
    }

    /// Adds the paths read; false if the whole document is.
    pub fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        match self {
            Window::Documents(..) => true,
            Window::Range { position, .. } => position.iter().all(|p| p.dependencies(paths)),
        }
    }

    /// The window of each document.
    pub fn ranges(
        &self,
        partition: &Partition<'_>,
        holding: &mut Holding,
    ) -> Result<Ranges, QueryError> {
        let count = partition.len();
        match self {
            Window::Documents(lower, upper) => {
                let at =
                    |from: usize, by: i64| (from as i64).saturating_add(by).clamp(0, count as i64);
                let start = |from: usize| match lower {
                    Bound::Unbounded => 0,
                    Bound::Current => from,
                    Bound::At(by) => at(from, *by) as usize,
                };
                let end = |from: usize| match upper {
                    Bound::Unbounded => count,
                    Bound::Current => from + 1,
                    Bound::At(by) => at(from, by.saturating_add(1)) as usize,
                };
                Ok(Ranges::find(count, |from| Ok(start(from)..end(from))))
            }
            Window::Range {
                lower,
                upper,
                position,
                dates,
            } => {
                let Some(position) = position else {
                    return error(5429404, "Missing _sortExpr with range-based bounds");
                };
                let values = partition.values(position, holding)?;
                let is_right =
                    |value: &Option<RawBson>| check_position(as_ref(value), *dates).is_ok();
                // An unbounded window ends where the values are of other types.
                let comparable = values.iter().take_while(|value| is_right(value)).count();
                let mut starts = Edges::new(&values, partition.budget);
                let mut ends = Edges::new(&values, partition.budget);
                Ok(Ranges::find(count, |at| {
                    let value = values.get(at).and_then(Option::as_ref);
                    check_position(value.map(RawBson::as_raw_bson_ref), *dates)?;
                    let start = match lower {
                        Bound::Unbounded => 0,
                        Bound::Current => at,
                        Bound::At(by) => starts.next(by, value, |order| order.is_lt())?,
                    };
                    let end = match upper {
                        Bound::Unbounded => comparable,
                        Bound::Current => at + 1,
                        Bound::At(by) => ends.next(by, value, |order| order.is_le())?,
                    };
                    Ok(start..end)
                }))
            }
        }
    }
}

fn as_ref(value: &Option<RawBson>) -> Option<RawBsonRef<'_>> {
    value.as_ref().map(RawBson::as_raw_bson_ref)
}

/// For one document after the other the first one whose value does not lie before a bound; as the
/// documents are sorted, it only moves on.
struct Edges<'v> {
    values: &'v [Option<RawBson>],
    budget: &'v Budget,
    edge: usize,
}

impl<'v> Edges<'v> {
    fn new(values: &'v [Option<RawBson>], budget: &'v Budget) -> Edges<'v> {
        Edges {
            values,
            budget,
            edge: 0,
        }
    }

    fn next(
        &mut self,
        offset: &Offset,
        value: Option<&RawBson>,
        is_before: impl Fn(Ordering) -> bool,
    ) -> Result<usize, QueryError> {
        self.budget.spend(1)?;
        let limit = offset.from(value)?;
        let lies_before = |value: &Option<RawBson>| {
            let value = value.as_ref().unwrap_or(&RawBson::Null);
            is_before(compare(value.as_raw_bson_ref(), limit.as_raw_bson_ref()))
        };
        while self.values.get(self.edge).is_some_and(lies_before) {
            self.budget.spend(1)?;
            self.edge += 1;
        }
        Ok(self.edge)
    }
}

/// How far away a window ends.
#[derive(Clone, Debug)]
pub(super) enum Offset {
    Number(Number),
    /// What makes the end out of a date.
    Time(Box<Expression>),
}

impl Offset {
    /// The end of the window of a value; null if it has none.
    fn from(&self, value: Option<&RawBson>) -> Result<RawBson, QueryError> {
        match self {
            Offset::Number(by) => {
                let number = value.and_then(|value| Number::from_raw(value.as_raw_bson_ref()));
                let end = number.map(|number| end(number, *by).to_raw().into());
                Ok(end.unwrap_or(RawBson::Null))
            }
            Offset::Time(expression) => {
                let mut root = DocumentWriter::new();
                if let Some(value) = value {
                    root.append("v", value.as_raw_bson_ref());
                }
                let end = expression.evaluate_owned(&root.finish())?;
                Ok(end.unwrap_or(RawBson::Null))
            }
        }
    }
}

/// Doubles end at decimals of 15 digits, as in MongoDB: so `0.1` is one below `1.1`.
fn end(number: Number, by: Number) -> Number {
    // What those digits hold is the same as an integer.
    const DIGITS: i64 = 1_000_000_000_000_000;
    let whole = |number: Number| {
        let whole = number.to_i64_exact()?;
        (-DIGITS..DIGITS).contains(&whole).then_some(whole)
    };
    match (whole(number), whole(by)) {
        (Some(number), Some(by)) => Number::Int64(number + by),
        _ => Number::Decimal(number.to_decimal().add(by.to_decimal())),
    }
}

fn check_position(value: Option<RawBsonRef<'_>>, dates: bool) -> Result<(), QueryError> {
    let is_date = matches!(value, Some(RawBsonRef::DateTime(_)));
    let found = type_name(value);
    match (dates, is_date) {
        (true, true) => Ok(()),
        (true, false) => error(
            5429513,
            format!("Invalid range: Expected the sortBy field to be a Date, but it was {found}"),
        ),
        (false, true) => error(
            5429413,
            "Invalid range: For windows that involve date or time ranges, a unit must be provided.",
        ),
        (false, false) if value.and_then(Number::from_raw).is_some() => Ok(()),
        (false, false) => error(
            5429414,
            format!("Invalid range: Expected the sortBy field to be a number, but it was {found}"),
        ),
    }
}

fn check_order(low: Number, high: Number) -> Result<(), QueryError> {
    if low.compare(high).is_le() {
        return Ok(());
    }
    let (low, high) = (show(low.to_raw()), show(high.to_raw()));
    error(
        5339900,
        format!("Lower bound must not exceed upper bound: [{low}, {high}]"),
    )
}

fn two<'a>(name: &str, bounds: RawBsonRef<'a>) -> Result<(Written<'a>, Written<'a>), QueryError> {
    let array = bounds.as_array();
    let ends: Vec<_> = array.into_iter().flat_map(items).take(3).collect();
    let [lower, upper] = ends[..] else {
        let shown = show(bounds);
        return Err(failed(format!(
            "Window bounds must be a 2-element array: {name}: {shown}"
        )));
    };
    let read = |bound| match bound {
        RawBsonRef::String("unbounded") => Ok(Written::Unbounded),
        RawBsonRef::String("current") => Ok(Written::Current),
        RawBsonRef::String(_) => Err(failed(
            "Window bounds must be 'unbounded', 'current', or a number.",
        )),
        other => Ok(Written::Value(other)),
    };
    Ok((read(lower)?, read(upper)?))
}

fn document_bound(bound: Written<'_>) -> Result<Bound<i64>, QueryError> {
    match bound {
        Written::Unbounded => Ok(Bound::Unbounded),
        Written::Current => Ok(Bound::Current),
        Written::Value(value) => {
            let number = Number::from_raw(value).and_then(Number::to_i32_exact);
            let whole = || failed("Numeric document-based bounds must be an integer");
            number.map(|by| Bound::At(i64::from(by))).ok_or_else(whole)
        }
    }
}

fn range_bound(
    bound: Written<'_>,
    unit: Option<&str>,
    context: &Context,
) -> Result<Bound<Offset>, QueryError> {
    let value = match bound {
        Written::Unbounded => return Ok(Bound::Unbounded),
        Written::Current => return Ok(Bound::Current),
        Written::Value(value) => value,
    };
    let Some(number) = Number::from_raw(value) else {
        return Err(failed("Range-based bounds expression must be a number"));
    };
    let Some(unit) = unit else {
        return Ok(Bound::At(Offset::Number(number)));
    };
    let Some(amount) = number.to_i32_exact() else {
        return Err(failed("With 'unit', range-based bounds must be an integer"));
    };
    let mut writer = DocumentWriter::new();
    writer.begin_document("$dateAdd");
    writer.append_str("startDate", "$v");
    writer.append_str("unit", unit);
    writer.append_i64("amount", i64::from(amount));
    writer.end();
    let expression = writer.finish();
    let expression = Expression::parse(RawBsonRef::Document(&expression), context)?;
    Ok(Bound::At(Offset::Time(Box::new(expression))))
}
