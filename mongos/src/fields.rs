//! Small readers of command and reply fields.

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, ErrorCode, Request, params};
use bson::{RawBsonRef, RawDocument};

/// A number of any numeric type, as commands take them.
pub fn number(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Double(n) if n.is_nan() => None,
        // Saturates, as every other reading of a large count would mean the same.
        value => params::number(value),
    }
}

pub fn float(value: RawBsonRef<'_>) -> Option<f64> {
    match value {
        RawBsonRef::Int32(n) => Some(n.into()),
        RawBsonRef::Int64(n) => Some(n as f64),
        RawBsonRef::Double(n) => Some(n),
        _ => None,
    }
}

pub fn get<'a>(document: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    banyan_document::field(document, name)
}

/// The documents in an array.
pub fn documents<'a>(
    document: &'a RawDocument,
    name: &str,
) -> impl Iterator<Item = &'a RawDocument> + use<'a> {
    let array = match get(document, name) {
        Some(RawBsonRef::Array(array)) => Some(array),
        _ => None,
    };
    let items = array.into_iter().flatten().flatten();
    items.filter_map(|item| item.as_document())
}

pub fn get_number(document: &RawDocument, name: &str) -> Option<i64> {
    get(document, name).and_then(number)
}

pub fn get_flag(document: &RawDocument, name: &str) -> bool {
    get(document, name).is_some_and(banyan_document::is_true)
}

/// Whether a reply says that its command went well.
pub fn is_ok(reply: &RawDocument) -> bool {
    get(reply, "ok").is_some_and(banyan_document::is_true)
}

/// The collection that the command's first field names.
pub fn collection(request: &Request) -> Result<&str, CommandError> {
    match request.first_value() {
        Some(RawBsonRef::String(name)) if !name.is_empty() => Ok(name),
        Some(RawBsonRef::String(_)) => Err(CommandError::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{}.'", request.database),
        )),
        _ => Err(CommandError::new(
            ErrorCode::BadValue,
            format!("collection name has invalid type for {}", request.name),
        )),
    }
}

/// The stages of the command's pipeline.
pub fn stages(body: &RawDocument) -> Result<Vec<&RawDocument>, CommandError> {
    let wrong = || {
        let text = "'pipeline' option must be specified as an array";
        CommandError::new(ErrorCode::TypeMismatch, text)
    };
    let Some(RawBsonRef::Array(array)) = get(body, "pipeline") else {
        return Err(wrong());
    };
    array
        .into_iter()
        .map(|stage| match stage {
            Ok(RawBsonRef::Document(stage)) => Ok(stage),
            _ => {
                let text = "Each element of the 'pipeline' array must be an object";
                Err(CommandError::new(ErrorCode::TypeMismatch, text))
            }
        })
        .collect()
}

/// The full name `database.collection` that an admin command's first field holds.
pub fn full_name(request: &Request) -> Result<String, CommandError> {
    match request.first_value() {
        Some(RawBsonRef::String(name)) => {
            let valid = name.split_once('.').is_some_and(|(database, collection)| {
                !database.is_empty() && !collection.is_empty()
            });
            if valid {
                return Ok(name.to_owned());
            }
            let text = format!("Invalid namespace specified '{name}'");
            Err(CommandError::new(ErrorCode::InvalidNamespace, text))
        }
        _ => Err(wrong_type(&request.name, "string")),
    }
}

/// The string that the command's first field holds.
pub fn first_string(request: &Request) -> Result<&str, CommandError> {
    match request.first_value() {
        Some(RawBsonRef::String(text)) => Ok(text),
        _ => Err(wrong_type(&request.name, "string")),
    }
}

fn wrong_type(field: &str, expected: &str) -> CommandError {
    let text =
        format!("BSON field '{field}.{field}' is the wrong type, expected type '{expected}'");
    CommandError::new(ErrorCode::TypeMismatch, text)
}

pub fn required<'a>(request: &'a Request, name: &str) -> Result<RawBsonRef<'a>, CommandError> {
    request.get(name).ok_or_else(|| {
        let text = format!(
            "BSON field '{}.{name}' is missing but a required field",
            request.name
        );
        CommandError::new(ErrorCode::Location(40414), text)
    })
}

/// A field that holds a document; an absent one is empty.
pub fn document<'a>(
    body: &'a RawDocument,
    name: &str,
) -> Result<Option<&'a RawDocument>, CommandError> {
    match get(body, name) {
        None | Some(RawBsonRef::Null) => Ok(None),
        Some(RawBsonRef::Document(document)) => Ok(Some(document)),
        Some(_) => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!("BSON field '{name}' is the wrong type, expected type 'object'"),
        )),
    }
}

/// Appends a shard's reply under a name, without what belongs to the message it came in.
pub fn append_reply(out: &mut DocumentWriter, name: &str, reply: &RawDocument) {
    out.begin_document(name);
    for element in banyan_document::elements(reply) {
        if !matches!(
            element.name(),
            "$clusterTime" | "operationTime" | "$gleStats"
        ) {
            out.append_element(&element);
        }
    }
    out.end();
}
