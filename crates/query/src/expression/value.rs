//! What operators need to know about a value: is it null, is it true, its type's name, its text.

use banyan_document::depth::is_deeper;
use banyan_document::number::Rounding;
use banyan_document::{MAX_DEPTH, Number};
use bson::RawBsonRef;

use crate::error::{ErrorKind, QueryError};

/// A value, or nothing where a field is missing.
pub type Value<'a> = Option<RawBsonRef<'a>>;

/// Null, undefined and missing: what most operators answer null for.
pub fn is_nullish(value: Value<'_>) -> bool {
    matches!(value, None | Some(RawBsonRef::Null | RawBsonRef::Undefined))
}

pub fn is_true(value: Value<'_>) -> bool {
    value.is_some_and(banyan_document::is_true)
}

/// MongoDB's name of the type, `missing` included.
pub fn type_name(value: Value<'_>) -> &'static str {
    let Some(value) = value else { return "missing" };
    match value {
        RawBsonRef::Double(_) => "double",
        RawBsonRef::String(_) => "string",
        RawBsonRef::Array(_) => "array",
        RawBsonRef::Document(_) => "object",
        RawBsonRef::Boolean(_) => "bool",
        RawBsonRef::Null => "null",
        RawBsonRef::RegularExpression(_) => "regex",
        RawBsonRef::JavaScriptCode(_) => "javascript",
        RawBsonRef::JavaScriptCodeWithScope(_) => "javascriptWithScope",
        RawBsonRef::Int32(_) => "int",
        RawBsonRef::Int64(_) => "long",
        RawBsonRef::Timestamp(_) => "timestamp",
        RawBsonRef::Binary(_) => "binData",
        RawBsonRef::ObjectId(_) => "objectId",
        RawBsonRef::DateTime(_) => "date",
        RawBsonRef::Symbol(_) => "symbol",
        RawBsonRef::Decimal128(_) => "decimal",
        RawBsonRef::Undefined => "undefined",
        RawBsonRef::MaxKey => "maxKey",
        RawBsonRef::MinKey => "minKey",
        RawBsonRef::DbPointer(_) => "dbPointer",
    }
}

/// A value as MongoDB's messages show it.
pub fn describe(value: Value<'_>) -> String {
    let Some(value) = value else {
        return "MISSING".into();
    };
    match value {
        RawBsonRef::Double(v) => format_double(v),
        RawBsonRef::Int32(v) => v.to_string(),
        RawBsonRef::Int64(v) => v.to_string(),
        RawBsonRef::Decimal128(v) => v.to_string(),
        RawBsonRef::String(v) => format!("\"{v}\""),
        RawBsonRef::Symbol(v) => format!("Symbol(\"{v}\")"),
        RawBsonRef::Boolean(v) => v.to_string(),
        RawBsonRef::Null => "null".into(),
        RawBsonRef::Undefined => "undefined".into(),
        RawBsonRef::MinKey => "MinKey".into(),
        RawBsonRef::MaxKey => "MaxKey".into(),
        RawBsonRef::ObjectId(v) => v.to_hex(),
        RawBsonRef::DateTime(v) => date_text(v.timestamp_millis()),
        RawBsonRef::Timestamp(v) => format!("Timestamp({}, {})", v.time, v.increment),
        RawBsonRef::RegularExpression(v) => format!("/{}/{}", v.pattern, v.options),
        RawBsonRef::JavaScriptCode(v) => format!("Code(\"{v}\")"),
        RawBsonRef::JavaScriptCodeWithScope(v) => format!("CodeWScope(\"{}\")", v.code),
        RawBsonRef::Binary(v) => format!("BinData({})", u8::from(v.subtype)),
        RawBsonRef::DbPointer(_) => "DBRef".into(),
        RawBsonRef::Array(v) => {
            let items: Vec<_> = items(v).map(|item| describe(Some(item))).collect();
            format!("[{}]", items.join(", "))
        }
        RawBsonRef::Document(v) => {
            let fields: Vec<_> = v
                .iter()
                .map_while(Result::ok)
                .map(|(name, value)| format!("{name}: {}", describe(Some(value))))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

/// `2024-02-29T13:45:07.123Z`; what chrono cannot represent is shown as milliseconds.
fn date_text(millis: i64) -> String {
    match chrono::DateTime::from_timestamp_millis(millis) {
        Some(date) => date.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string(),
        None => format!("Date({millis})"),
    }
}

/// A double with six significant digits, as the reference prints them and `$toString` gives them.
pub fn format_double(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            "Infinity".into()
        } else {
            "-Infinity".into()
        };
    }
    if value == 0.0 {
        return if value.is_sign_negative() {
            "-0".into()
        } else {
            "0".into()
        };
    }
    general_format(value, 6)
}

/// A finite double with so many significant digits, one at least, as C's `%g` prints it.
pub(crate) fn general_format(value: f64, digits: u8) -> String {
    let digits = i32::from(digits.max(1));
    let scientific = format!("{value:.*e}", digits as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if !(-4..digits).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(mantissa), exponent.abs());
    }
    trim(&format!("{value:.*}", (digits - 1 - exponent) as usize))
}

/// Refuses a computed value that nests too deep: what walks documents does so recursively. Call it
/// wherever a result can become part of another document again: between stages, and between the steps
/// of a fold.
pub(crate) fn check_depth(value: RawBsonRef<'_>) -> Result<(), QueryError> {
    if is_deeper(value, MAX_DEPTH) {
        return Err(QueryError::new(
            ErrorKind::Overflow,
            format!("a computed document exceeds the limit of {MAX_DEPTH} levels of nesting"),
        ));
    }
    Ok(())
}

/// The elements of an array.
pub fn items(array: &bson::RawArray) -> impl Iterator<Item = RawBsonRef<'_>> {
    banyan_document::values(array)
}

pub(crate) fn error<T>(code: u32, message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::Location(code), message))
}

/// A number as a long, without its fraction; a decimal that does not fit comes to the least one.
pub(crate) fn whole_number(number: Number) -> Result<i64, QueryError> {
    match number {
        Number::Double(double) if !(-TWO_TO_63..TWO_TO_63).contains(&double) => {
            let message = format!("Can't coerce out of range value {double} to long");
            error(31109, message)
        }
        Number::Double(double) => Ok(double as i64),
        Number::Decimal(decimal) => {
            let whole = decimal.round_to(0, Rounding::HalfEven).to_i64_exact();
            Ok(whole.unwrap_or(i64::MIN))
        }
        whole => Ok(whole.to_i64_saturating()),
    }
}

/// How many values `$firstN` and its like are asked for.
pub(crate) fn wanted_number(n: Value<'_>) -> Result<usize, QueryError> {
    let no_integer = |code| {
        let shown = n.map_or("MISSING".into(), show);
        let message = format!("Value for 'n' must be of integral type, but found {shown}");
        error(code, message)
    };
    let Some(number) = n.and_then(Number::from_raw) else {
        return no_integer(5787902);
    };
    // What is whole as a double is: a decimal may have digits that a double does not hold.
    let n = whole_number(number)?;
    if n as f64 != number.to_f64() {
        return no_integer(5787903);
    }
    match usize::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => error(5787908, format!("'n' must be greater than 0, found {n}")),
    }
}

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// A document in the notation of MongoDB's messages: `{ a: 1, b: [ "x" ] }`.
pub(crate) fn show_document(document: &bson::RawDocument) -> String {
    let fields: Vec<_> = document
        .iter()
        .map_while(Result::ok)
        .map(|(name, value)| format!("{name}: {}", show(value)))
        .collect();
    if fields.is_empty() {
        "{}".into()
    } else {
        format!("{{ {} }}", fields.join(", "))
    }
}

/// A value in the notation of MongoDB's messages.
pub(crate) fn show(value: RawBsonRef<'_>) -> String {
    match value {
        RawBsonRef::Document(document) => show_document(document),
        RawBsonRef::Array(array) => {
            let items: Vec<_> = items(array).map(show).collect();
            if items.is_empty() {
                "[]".into()
            } else {
                format!("[ {} ]", items.join(", "))
            }
        }
        RawBsonRef::ObjectId(id) => format!("ObjectId('{}')", id.to_hex()),
        RawBsonRef::Double(v) if v.is_finite() && v.trunc() == v && v.abs() < 1e15 => {
            format!("{v:.1}")
        }
        other => describe(Some(other)),
    }
}
