//! From BSON to text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::{Bson, Document, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use chrono::{DateTime, SecondsFormat};

pub fn print_document(document: &Document) -> String {
    match RawDocumentBuf::try_from(document) {
        Ok(raw) => print(&raw),
        Err(error) => format!("<{error}>"),
    }
}

pub fn print_value(value: &Bson) -> String {
    match RawBson::try_from(value.clone()) {
        Ok(raw) => text(raw.as_raw_bson_ref()),
        Err(error) => format!("<{error}>"),
    }
}

pub fn print(document: &RawDocument) -> String {
    let mut out = String::new();
    write_document(&mut out, document);
    out
}

/// One value; what is not BSON is shown as such, in angle brackets.
pub fn text(value: RawBsonRef<'_>) -> String {
    let mut out = String::new();
    write(&mut out, value);
    out
}

/// The name of a field, quoted where it must be.
pub fn name(name: &str) -> String {
    let mut out = String::new();
    write_name(&mut out, name);
    out
}

fn write_document(out: &mut String, document: &RawDocument) {
    out.push('{');
    for (index, element) in document.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        match element {
            Ok((name, value)) => {
                write_name(out, name.as_str());
                out.push_str(": ");
                write(out, value);
            }
            Err(error) => {
                out.push_str(&format!("<{error}>"));
                break;
            }
        }
    }
    out.push('}');
}

fn write_name(out: &mut String, name: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    if name.chars().all(plain) && name.starts_with(|c: char| !c.is_ascii_digit()) {
        out.push_str(name);
    } else {
        write_string(out, name);
    }
}

fn write_string(out: &mut String, string: &str) {
    out.push('"');
    for c in string.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write(out: &mut String, value: RawBsonRef<'_>) {
    match value {
        RawBsonRef::Double(double) => out.push_str(&double_text(double)),
        RawBsonRef::String(string) => write_string(out, string),
        RawBsonRef::Array(array) => write_array(out, array),
        RawBsonRef::Document(document) => write_document(out, document),
        RawBsonRef::Boolean(boolean) => out.push_str(if boolean { "true" } else { "false" }),
        RawBsonRef::Null => out.push_str("null"),
        RawBsonRef::Undefined => out.push_str("undefined"),
        RawBsonRef::Int32(int) => out.push_str(&int.to_string()),
        RawBsonRef::Int64(long) => out.push_str(&format!("NumberLong(\"{long}\")")),
        RawBsonRef::Decimal128(decimal) => {
            out.push_str(&format!("NumberDecimal(\"{decimal}\")"));
        }
        RawBsonRef::MinKey => out.push_str("MinKey()"),
        RawBsonRef::MaxKey => out.push_str("MaxKey()"),
        RawBsonRef::ObjectId(id) => out.push_str(&format!("ObjectId(\"{id}\")")),
        RawBsonRef::DateTime(date) => out.push_str(&date_text(date.timestamp_millis())),
        RawBsonRef::Timestamp(time) => {
            out.push_str(&format!("Timestamp({}, {})", time.time, time.increment));
        }
        RawBsonRef::RegularExpression(regex) => {
            let pattern = regex.pattern.as_str().replace('/', "\\/");
            out.push_str(&format!("/{pattern}/{}", regex.options.as_str()));
        }
        RawBsonRef::Binary(binary) => {
            let subtype = u8::from(binary.subtype);
            out.push_str(&format!(
                "BinData({subtype}, \"{}\")",
                STANDARD.encode(binary.bytes)
            ));
        }
        RawBsonRef::Symbol(symbol) => call(out, "BSONSymbol", symbol, None),
        RawBsonRef::JavaScriptCode(code) => call(out, "Code", code, None),
        RawBsonRef::JavaScriptCodeWithScope(code) => call(out, "Code", code.code, Some(code.scope)),
        RawBsonRef::DbPointer(_) => write_pointer(out, value),
    }
}

fn write_array(out: &mut String, array: &bson::RawArray) {
    out.push('[');
    for (index, item) in array.into_iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        match item {
            Ok(item) => write(out, item),
            Err(error) => {
                out.push_str(&format!("<{error}>"));
                break;
            }
        }
    }
    out.push(']');
}

fn call(out: &mut String, name: &str, argument: &str, scope: Option<&RawDocument>) {
    out.push_str(name);
    out.push('(');
    write_string(out, argument);
    if let Some(scope) = scope {
        out.push_str(", ");
        write_document(out, scope);
    }
    out.push(')');
}

fn write_pointer(out: &mut String, value: RawBsonRef<'_>) {
    let (namespace, id) = super::pointer_parts(value);
    out.push_str("DBPointer(");
    write_string(out, &namespace);
    out.push_str(&format!(", ObjectId(\"{id}\"))"));
}

fn double_text(double: f64) -> String {
    if double.is_nan() {
        "NaN".to_owned()
    } else if double.is_infinite() {
        if double > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .to_owned()
    } else {
        format!("{double:?}")
    }
}

fn date_text(millis: i64) -> String {
    // The years that the shell's ISODate reads without a sign.
    const FIRST: i64 = -62_135_596_800_000;
    const LAST: i64 = 253_402_300_799_999;
    match DateTime::from_timestamp_millis(millis) {
        Some(date) if (FIRST..=LAST).contains(&millis) => {
            let text = date.to_rfc3339_opts(SecondsFormat::Millis, true);
            format!("ISODate(\"{text}\")")
        }
        _ => format!("new Date({millis})"),
    }
}
