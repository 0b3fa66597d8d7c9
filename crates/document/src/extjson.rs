//! Extended JSON, canonical and relaxed, by way of `bson`. For people, logs and tests: nothing
//! here is made to be fast.

use bson::{Bson, Document, RawDocument, RawDocumentBuf};
use serde_json::Value;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum ExtJsonError {
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("not extended JSON: {0}")]
    ExtJson(String),
    #[error("not a document")]
    NotADocument,
}

/// Canonical: every type is kept.
pub fn canonical(document: &RawDocument) -> Result<Value, ExtJsonError> {
    Ok(decode(document)?.into_canonical_extjson())
}

/// Relaxed: numbers and dates as people write them.
pub fn relaxed(document: &RawDocument) -> Result<Value, ExtJsonError> {
    Ok(decode(document)?.into_relaxed_extjson())
}

pub fn canonical_text(document: &RawDocument) -> Result<String, ExtJsonError> {
    Ok(canonical(document)?.to_string())
}

pub fn relaxed_text(document: &RawDocument) -> Result<String, ExtJsonError> {
    Ok(relaxed(document)?.to_string())
}

/// Reads either form.
pub fn parse(text: &str) -> Result<RawDocumentBuf, ExtJsonError> {
    let document = match parse_value(text)? {
        Bson::Document(document) => document,
        _ => return Err(ExtJsonError::NotADocument),
    };
    encode(&document)
}

/// Reads one value of any type.
pub fn parse_value(text: &str) -> Result<Bson, ExtJsonError> {
    let json: Value = serde_json::from_str(text)?;
    Bson::try_from(json).map_err(|error| ExtJsonError::ExtJson(error.to_string()))
}

fn decode(document: &RawDocument) -> Result<Bson, ExtJsonError> {
    Document::try_from(document)
        .map(Bson::Document)
        .map_err(|error| ExtJsonError::ExtJson(error.to_string()))
}

fn encode(document: &Document) -> Result<RawDocumentBuf, ExtJsonError> {
    RawDocumentBuf::try_from(document).map_err(|error| ExtJsonError::ExtJson(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_there_and_back() {
        let text = r#"{"i":{"$numberInt":"1"},"l":{"$numberLong":"2"},"d":{"$numberDouble":"1.5"},"s":"x","o":{"$oid":"5f5f5f5f5f5f5f5f5f5f5f5f"},"t":{"$date":{"$numberLong":"0"}},"a":[null,true]}"#;
        let document = parse(text).unwrap();
        assert_eq!(canonical_text(&document).unwrap(), text);
        let relaxed = relaxed_text(&document).unwrap();
        assert!(
            relaxed.starts_with(r#"{"i":1,"l":2,"d":1.5,"s":"x""#),
            "{relaxed}"
        );
        assert!(matches!(parse("[1]"), Err(ExtJsonError::NotADocument)));
        assert!(matches!(parse("{"), Err(ExtJsonError::Json(_))));
    }
}
