//! Stand-in until the document crate's validator lands.
use bson::{RawBsonRef, RawDocument};

#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    #[error("nested too deep")]
    TooDeep { max: usize },
    #[error("malformed BSON: {0}")]
    Malformed(String),
}

pub fn validate_with_depth(bytes: &[u8], depth: usize) -> Result<(), Invalid> {
    let doc = RawDocument::from_bytes(bytes).map_err(|e| Invalid::Malformed(e.to_string()))?;
    walk(doc, depth)
}

fn walk(doc: &RawDocument, depth: usize) -> Result<(), Invalid> {
    if depth == 0 {
        return Err(Invalid::TooDeep { max: 100 });
    }
    for element in doc.iter() {
        let (_, value) = element.map_err(|e| Invalid::Malformed(e.to_string()))?;
        match value {
            RawBsonRef::Document(d) => walk(d, depth - 1)?,
            RawBsonRef::Array(a) => {
                let d = RawDocument::from_bytes(a.as_bytes())
                    .map_err(|e| Invalid::Malformed(e.to_string()))?;
                walk(d, depth - 1)?
            }
            _ => {}
        }
    }
    Ok(())
}
