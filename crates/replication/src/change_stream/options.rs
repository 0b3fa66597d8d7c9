//! The argument of `$changeStream`.

use banyan_wire::params::{self, Field};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument};

use super::token::Token;
use crate::clock;
use crate::errors;

/// What `fullDocument` of an update is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FullDocument {
    /// It has none.
    #[default]
    Default,
    /// The document as it is when the event is read.
    UpdateLookup,
    /// The document as the update left it, where the collection keeps such images.
    WhenAvailable,
    Required,
}

/// Whether events show the document as it was before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BeforeChange {
    #[default]
    Off,
    WhenAvailable,
    Required,
}

/// Where a stream begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Start {
    #[default]
    Now,
    /// At this time, as [`clock::to_bits`].
    At(u64),
    /// `resumeAfter`.
    Resume(Token),
    /// `startAfter`, which may go on behind the end of an earlier stream.
    After(Token),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub full_document: FullDocument,
    pub before_change: BeforeChange,
    pub start: Start,
    pub all_changes: bool,
    /// `showExpandedEvents`.
    pub expanded: bool,
    /// The pipeline splits events that are too large.
    pub splits: bool,
}

const PARSER: &str = "$changeStream";

impl Options {
    pub fn parse(argument: Option<RawBsonRef<'_>>) -> Result<Options, CommandError> {
        let document = match argument {
            Some(RawBsonRef::Document(document)) => document,
            other => {
                let shown = errors::shown(other.unwrap_or(RawBsonRef::Null));
                return Err(CommandError::new(
                    ErrorCode::Location(6_188_500),
                    format!(
                        "$changeStream must take a nested object but found: $changeStream: {shown}"
                    ),
                ));
            }
        };
        let mut options = Options::default();
        let (mut resume, mut after, mut at) = (None, None, None);
        for (name, value) in document.iter().flatten() {
            let name = name.as_str();
            let field = Field {
                command: PARSER,
                name,
                value,
            };
            if field.is_null() {
                known(name)?;
                continue;
            }
            match name {
                "fullDocument" => options.full_document = full_document(field)?,
                "fullDocumentBeforeChange" => options.before_change = before_change(field)?,
                "resumeAfter" => resume = Some(token(field)?),
                "startAfter" => after = Some(token(field)?),
                "startAtOperationTime" => match value {
                    RawBsonRef::Timestamp(time) => at = Some(clock::to_bits(time)),
                    _ => return Err(field.wrong_type("type 'timestamp'")),
                },
                "allChangesForCluster" => options.all_changes = field.strict_bool()?,
                "showExpandedEvents" => options.expanded = field.strict_bool()?,
                // Nothing here is a migration, nor a router's part of a stream.
                other => known(other)?,
            }
        }
        options.start = match (resume, after, at) {
            (None, None, None) => Start::Now,
            (Some(token), None, None) => Start::Resume(token),
            (None, Some(token), None) => Start::After(token),
            (None, None, Some(time)) => Start::At(time),
            (Some(_), Some(_), None) => {
                return Err(CommandError::new(
                    ErrorCode::Location(50865),
                    "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage",
                ));
            }
            _ => {
                return Err(CommandError::new(
                    ErrorCode::Location(40674),
                    "Only one type of resume option is allowed, but multiple were found",
                ));
            }
        };
        Ok(options)
    }
}

fn known(name: &str) -> Result<(), CommandError> {
    const KNOWN: [&str; 10] = [
        "fullDocument",
        "fullDocumentBeforeChange",
        "resumeAfter",
        "startAfter",
        "startAtOperationTime",
        "allChangesForCluster",
        "showExpandedEvents",
        "showMigrationEvents",
        "showSystemEvents",
        "allowToRunOnConfigDB",
    ];
    if KNOWN.contains(&name) {
        Ok(())
    } else {
        Err(params::unknown_field(PARSER, name))
    }
}

fn full_document(field: Field<'_>) -> Result<FullDocument, CommandError> {
    match field.str()? {
        "default" => Ok(FullDocument::Default),
        "updateLookup" => Ok(FullDocument::UpdateLookup),
        "whenAvailable" => Ok(FullDocument::WhenAvailable),
        "required" => Ok(FullDocument::Required),
        other => Err(no_such_value(&field, other)),
    }
}

fn before_change(field: Field<'_>) -> Result<BeforeChange, CommandError> {
    match field.str()? {
        "off" => Ok(BeforeChange::Off),
        "whenAvailable" => Ok(BeforeChange::WhenAvailable),
        "required" => Ok(BeforeChange::Required),
        other => Err(no_such_value(&field, other)),
    }
}

fn no_such_value(field: &Field<'_>, value: &str) -> CommandError {
    CommandError::new(
        ErrorCode::BadValue,
        format!(
            "Enumeration value '{value}' for field '{PARSER}.{}' is not a valid value.",
            field.name
        ),
    )
}

fn token(field: Field<'_>) -> Result<Token, CommandError> {
    let document: &RawDocument = field.document()?;
    match document.get("_data") {
        Ok(Some(RawBsonRef::String(data))) => Token::parse(data),
        _ => Err(CommandError::new(
            ErrorCode::Location(40647),
            format!(
                "Bad resume token: _data of missing or of wrong type. Expected string, got {}",
                errors::shown(RawBsonRef::Document(document))
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, Timestamp, rawdoc};

    fn parse(document: &RawDocumentBuf) -> Result<Options, CommandError> {
        Options::parse(Some(RawBsonRef::Document(document)))
    }

    #[test]
    fn a_stream_begins_in_one_place() {
        let token = Token::high_water(77).to_document();
        let time = Timestamp {
            time: 0,
            increment: 5,
        };
        assert_eq!(parse(&rawdoc! {}).unwrap(), Options::default());
        let options = parse(&rawdoc! { "resumeAfter": token.clone(), "startAfter": null });
        assert_eq!(options.unwrap().start, Start::Resume(Token::high_water(77)));
        let code = |document: RawDocumentBuf| parse(&document).unwrap_err().code.code();
        assert_eq!(
            code(rawdoc! { "resumeAfter": token.clone(), "startAfter": token.clone() }),
            50865
        );
        assert_eq!(
            code(rawdoc! { "resumeAfter": token, "startAtOperationTime": time }),
            40674
        );
        assert_eq!(code(rawdoc! { "startAtOperationTime": 5 }), 14);
        assert_eq!(code(rawdoc! { "resumeAfter": { "x": 1 } }), 40647);
        assert_eq!(code(rawdoc! { "fullDocument": "some" }), 2);
        assert_eq!(code(rawdoc! { "foo": 1 }), 40415);
        let none = Options::parse(Some(RawBsonRef::Int32(5)));
        assert_eq!(none.unwrap_err().code.code(), 6_188_500);
    }
}
