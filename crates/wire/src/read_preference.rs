//! Read preferences: which members of a set may answer a read, as a client says it in
//! `$readPreference`.

use std::time::Duration;

use banyan_document::field;
use bson::{RawBsonRef, RawDocument};

use crate::ErrorCode;
use crate::error::CommandError;

/// The kind of member that may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    #[default]
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
    Nearest,
}

impl ReadMode {
    pub fn name(self) -> &'static str {
        match self {
            ReadMode::Primary => "primary",
            ReadMode::PrimaryPreferred => "primaryPreferred",
            ReadMode::Secondary => "secondary",
            ReadMode::SecondaryPreferred => "secondaryPreferred",
            ReadMode::Nearest => "nearest",
        }
    }

    fn from_name(name: &str) -> Option<ReadMode> {
        const ALL: [ReadMode; 5] = [
            ReadMode::Primary,
            ReadMode::PrimaryPreferred,
            ReadMode::Secondary,
            ReadMode::SecondaryPreferred,
            ReadMode::Nearest,
        ];
        ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// Tags that a member must have, all of them. The empty set fits every member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagSet(pub Vec<(String, String)>);

/// A staleness bound below this cannot be told from the time between two heartbeats and two idle
/// writes.
pub const SMALLEST_MAX_STALENESS: Duration = Duration::from_secs(90);

/// A whole read preference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadPreference {
    pub mode: ReadMode,
    /// The first set that some member has counts. None at all: every member fits.
    pub tags: Vec<TagSet>,
    pub max_staleness: Option<Duration>,
}

impl From<ReadMode> for ReadPreference {
    fn from(mode: ReadMode) -> ReadPreference {
        ReadPreference {
            mode,
            ..ReadPreference::default()
        }
    }
}

impl ReadPreference {
    /// Reads the value of `$readPreference`. `hedge` is checked and has no effect; fields that
    /// nobody knows are passed over, as MongoDB does.
    pub fn parse(value: RawBsonRef<'_>) -> Result<ReadPreference, CommandError> {
        let RawBsonRef::Document(document) = value else {
            let actual = type_name(value);
            return Err(wrong_type(format!(
                "$readPreference has incorrect type: expected object but got {actual}"
            )));
        };
        let field = |name| field(document, name);
        let mode = parse_mode(field("mode"))?;
        let tags = parse_tags(field("tags"), mode)?;
        let max_staleness = parse_max_staleness(field("maxStalenessSeconds"), mode)?;
        check_hedge(field("hedge"), mode)?;
        Ok(ReadPreference {
            mode,
            tags,
            max_staleness,
        })
    }

    /// Finds the preference in a command's body: as today's drivers send it, or packed one level
    /// down as the routers of 2012 did.
    pub fn of_command(body: &RawDocument) -> Result<Option<ReadPreference>, CommandError> {
        let packed = || match field(body, "$queryOptions") {
            Some(RawBsonRef::Document(options)) => field(options, "$readPreference"),
            _ => None,
        };
        let given = field(body, "$readPreference").or_else(packed);
        given.map(ReadPreference::parse).transpose()
    }
}

fn parse_mode(value: Option<RawBsonRef<'_>>) -> Result<ReadMode, CommandError> {
    let name = match value {
        Some(RawBsonRef::String(name)) => name,
        Some(other) => {
            let actual = type_name(other);
            return Err(wrong_type(format!(
                "\"mode\" had the wrong type. Expected string, found {actual}"
            )));
        }
        None => {
            let text = "Missing expected field \"mode\"";
            return Err(CommandError::new(ErrorCode::NoSuchKey, text));
        }
    };
    ReadMode::from_name(name).ok_or_else(|| {
        bad(format!(
            "Could not parse $readPreference mode '{name}'. Only the modes 'primary', \
             'primaryPreferred', 'secondary', 'secondaryPreferred', and 'nearest' are supported. \
             :: caused by :: Enumeration value '{name}' for field 'mode' is not a valid value."
        ))
    })
}

fn parse_tags(value: Option<RawBsonRef<'_>>, mode: ReadMode) -> Result<Vec<TagSet>, CommandError> {
    let array = match value {
        None => return Ok(Vec::new()),
        Some(RawBsonRef::Array(array)) => array,
        Some(other) => {
            let actual = type_name(other);
            return Err(wrong_type(format!(
                "\"tags\" had the wrong type. Expected array, found {actual}"
            )));
        }
    };
    // A tag that is not a string, or a set that is not a document, fits no member.
    let set = |value: RawBsonRef<'_>| match value {
        RawBsonRef::Document(document) => TagSet(
            document
                .iter()
                .flatten()
                .map(|(name, value)| {
                    let wanted = match value {
                        RawBsonRef::String(text) => text.to_owned(),
                        other => format!("{other:?}"),
                    };
                    (name.as_str().to_owned(), wanted)
                })
                .collect(),
        ),
        other => TagSet(vec![(String::new(), format!("{other:?}"))]),
    };
    let sets: Vec<TagSet> = array.into_iter().flatten().map(set).collect();
    let only_empty = sets.iter().all(|set| set.0.is_empty()) && sets.len() <= 1;
    if mode == ReadMode::Primary && !only_empty {
        return Err(bad(
            "Only empty tags are allowed with primary read preference",
        ));
    }
    Ok(sets)
}

fn parse_max_staleness(
    value: Option<RawBsonRef<'_>>,
    mode: ReadMode,
) -> Result<Option<Duration>, CommandError> {
    const FIELD: &str = "maxStalenessSeconds";
    let seconds = match value {
        None => return Ok(None),
        Some(RawBsonRef::Int32(n)) => i64::from(n),
        Some(RawBsonRef::Int64(n)) => n,
        // The largest integer a double holds exactly is far beyond any sensible bound.
        Some(RawBsonRef::Double(n)) if n.fract() == 0.0 && n.abs() < 9e15 => n as i64,
        Some(RawBsonRef::Double(n)) => {
            return Err(bad(format!(
                "Expected field \"{FIELD}\" to have a value exactly representable as a 64-bit \
                 integer, but found {FIELD}: {n}"
            )));
        }
        Some(RawBsonRef::Decimal128(n)) => n.to_string().parse().map_err(|_| {
            bad(format!(
                "Expected field \"{FIELD}\" to have a value exactly representable as a 64-bit \
                 integer, but found {FIELD}: {n}"
            ))
        })?,
        Some(other) => {
            let actual = type_name(other);
            return Err(wrong_type(format!(
                "Expected field \"{FIELD}\" to have numeric type, but found {actual}"
            )));
        }
    };
    let seconds = u64::try_from(seconds)
        .map_err(|_| bad(format!("{FIELD} must be a non-negative integer")))?;
    match seconds {
        0 => Ok(None),
        _ if Duration::from_secs(seconds) < SMALLEST_MAX_STALENESS => Err(CommandError::new(
            ErrorCode::MaxStalenessOutOfRange,
            format!(
                "{FIELD} value can not be less than {}",
                SMALLEST_MAX_STALENESS.as_secs()
            ),
        )),
        _ if mode == ReadMode::Primary => {
            Err(bad(format!("{FIELD} can not be set for the primary mode")))
        }
        _ => Ok(Some(Duration::from_secs(seconds))),
    }
}

fn check_hedge(value: Option<RawBsonRef<'_>>, mode: ReadMode) -> Result<(), CommandError> {
    let hedge = match value {
        None => return Ok(()),
        Some(RawBsonRef::Document(hedge)) => hedge,
        Some(_) => return Err(wrong_type("hedge field must be of type object if provided")),
    };
    let mut enabled = true;
    for (name, value) in hedge.iter().flatten() {
        match (name.as_str(), value) {
            ("enabled", RawBsonRef::Boolean(wanted)) => enabled = wanted,
            ("enabled", other) => {
                let actual = type_name(other);
                return Err(wrong_type(format!(
                    "BSON field 'hedge.enabled' is the wrong type '{actual}', expected type 'bool'"
                )));
            }
            (name, _) => {
                return Err(CommandError::new(
                    ErrorCode::Location(40415),
                    format!("BSON field 'hedge.{name}' is an unknown field."),
                ));
            }
        }
    }
    if enabled && mode == ReadMode::Primary {
        return Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "cannot enable hedging for $readPreference mode \"primaryOnly\"",
        ));
    }
    Ok(())
}

fn type_name(value: RawBsonRef<'_>) -> &'static str {
    banyan_document::kind::name(&value)
}

fn bad(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::BadValue, text)
}

fn wrong_type(text: impl Into<String>) -> CommandError {
    CommandError::new(ErrorCode::TypeMismatch, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawDocumentBuf, rawdoc};

    fn parse(document: RawDocumentBuf) -> Result<ReadPreference, CommandError> {
        ReadPreference::parse(RawBsonRef::Document(&document))
    }

    #[test]
    fn a_whole_preference_is_read() {
        let parsed = parse(rawdoc! {
            "mode": "secondaryPreferred",
            "tags": [{"dc": "east", "use": "reports"}, {}],
            "maxStalenessSeconds": 120.0,
            "hedge": {"enabled": true},
        })
        .unwrap();
        assert_eq!(parsed.mode, ReadMode::SecondaryPreferred);
        assert_eq!(parsed.tags.len(), 2);
        assert_eq!(parsed.tags[0].0[1].1, "reports");
        assert_eq!(parsed.max_staleness, Some(Duration::from_secs(120)));
        let packed =
            rawdoc! {"count": "c", "$queryOptions": {"$readPreference": {"mode": "nearest"}}};
        let found = ReadPreference::of_command(&packed).unwrap().unwrap();
        assert_eq!(found, ReadMode::Nearest.into());
        assert_eq!(ReadPreference::of_command(&rawdoc! {"a": 1}).unwrap(), None);
    }

    #[test]
    fn bad_ones_are_refused_in_mongodbs_codes() {
        let code = |document| parse(document).map(|_| 0).unwrap_or_else(|e| e.code.code());
        for (document, expected) in [
            (rawdoc! {}, 4),
            (rawdoc! {"mode": 3}, 14),
            (rawdoc! {"mode": "SECONDARY"}, 2),
            (rawdoc! {"mode": "secondary", "tags": {"a": "b"}}, 14),
            (rawdoc! {"mode": "primary", "tags": [{"a": "b"}]}, 2),
            (rawdoc! {"mode": "primary", "tags": [{}]}, 0),
            (rawdoc! {"mode": "primary", "tags": []}, 0),
            (rawdoc! {"mode": "primary", "maxStalenessSeconds": 100}, 2),
            (rawdoc! {"mode": "primary", "maxStalenessSeconds": 0}, 0),
            (rawdoc! {"mode": "nearest", "maxStalenessSeconds": -1}, 2),
            (rawdoc! {"mode": "nearest", "maxStalenessSeconds": 89}, 160),
            (rawdoc! {"mode": "nearest", "maxStalenessSeconds": 90}, 0),
            (rawdoc! {"mode": "nearest", "maxStalenessSeconds": 90.5}, 2),
            (rawdoc! {"mode": "nearest", "maxStalenessSeconds": 1e12}, 0),
            (rawdoc! {"mode": "nearest", "maxStalenessSeconds": "x"}, 14),
            (rawdoc! {"mode": "nearest", "hedge": {}}, 0),
            (rawdoc! {"mode": "nearest", "hedge": 1}, 14),
            (rawdoc! {"mode": "nearest", "hedge": {"enabled": 1}}, 14),
            (rawdoc! {"mode": "nearest", "hedge": {"delay": 1}}, 40415),
            (rawdoc! {"mode": "primary", "hedge": {}}, 72),
            (rawdoc! {"mode": "primary", "hedge": {"enabled": false}}, 0),
            (rawdoc! {"mode": "secondary", "other": 1}, 0),
        ] {
            assert_eq!(code(document.clone()), expected, "{document:?}");
        }
        let number = ReadPreference::parse(RawBsonRef::Int32(3)).unwrap_err();
        assert_eq!(number.code.code(), 14);
    }
}
