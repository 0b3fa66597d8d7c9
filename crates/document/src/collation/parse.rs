//! A `collation` document, with MongoDB's errors where it cannot be one.

use bson::{RawBsonRef, RawDocument};
use thiserror::Error;

use super::definition::{Absent, Alternate, CaseFirst, Collation, MaxVariable, Strength, VERSION};
use super::locale::{self, Customs};
use crate::element::{Element, elements};
use crate::extjson;
use crate::kind;
use crate::number::Number;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CollationError {
    #[error("BSON field 'collation.locale' is missing but a required field")]
    MissingLocale,
    #[error("BSON field 'collation.{0}' is an unknown field.")]
    UnknownField(String),
    #[error("BSON field 'collation.{0}' is a duplicate field")]
    DuplicateField(String),
    #[error("BSON field 'collation.{field}' is the wrong type '{found}', expected {expected}")]
    WrongType {
        field: &'static str,
        found: &'static str,
        expected: &'static str,
    },
    #[error("Enumeration value '{value}' for field 'collation.{field}' is not a valid value.")]
    NotAValue { field: &'static str, value: String },
    #[error("BSON field 'strength' value must be {0}, actual value '{1}'")]
    StrengthOutOfRange(&'static str, i32),
    #[error("{reason} in: {given}")]
    Invalid { reason: &'static str, given: String },
    #[error(
        "Requested collation version {wanted} but the only available collator version was \
         {VERSION}. Requested collation spec: {given}"
    )]
    Version { wanted: String, given: String },
}

impl CollationError {
    /// MongoDB's number for the error.
    pub fn code(&self) -> i32 {
        match self {
            CollationError::MissingLocale => 40414,
            CollationError::UnknownField(_) => 40415,
            CollationError::DuplicateField(_) => 40413,
            CollationError::WrongType { .. } => 14,
            CollationError::NotAValue { .. } | CollationError::Invalid { .. } => 2,
            CollationError::StrengthOutOfRange(..) => 51024,
            CollationError::Version { .. } => 161,
        }
    }
}

type Result<T> = std::result::Result<T, CollationError>;

/// What a document says, before a locale's customs fill it in.
#[derive(Default)]
struct Given<'a> {
    locale: Option<&'a str>,
    case_level: bool,
    case_first: Option<CaseFirst>,
    strength: Option<Strength>,
    numeric_ordering: bool,
    alternate: Option<Alternate>,
    max_variable: Option<MaxVariable>,
    normalization: Option<bool>,
    backwards: Option<bool>,
    version: Option<&'a str>,
}

impl<'a> Given<'a> {
    fn read(document: &'a RawDocument) -> Result<Given<'a>> {
        let mut given = Given::default();
        for (position, field) in elements(document).enumerate() {
            let mut before = elements(document).take(position);
            if before.any(|earlier| earlier.name() == field.name()) {
                return Err(CollationError::DuplicateField(field.name().to_owned()));
            }
            given.take(&field)?;
        }
        Ok(given)
    }

    fn take(&mut self, field: &Element<'a>) -> Result<()> {
        let null = matches!(field.value(), RawBsonRef::Null | RawBsonRef::Undefined);
        match field.name() {
            "backwards" => self.backwards = Some(flag("backwards", field)?),
            "locale" | "caseLevel" | "caseFirst" | "strength" | "numericOrdering" | "alternate"
            | "maxVariable" | "normalization" | "version"
                if null => {}
            "locale" => self.locale = Some(text("locale", field)?),
            "version" => self.version = Some(text("version", field)?),
            "caseLevel" => self.case_level = flag("caseLevel", field)?,
            "caseFirst" => {
                const VALUES: [CaseFirst; 3] = [CaseFirst::Upper, CaseFirst::Lower, CaseFirst::Off];
                self.case_first = Some(one_of(&VALUES, CaseFirst::name, "caseFirst", field)?);
            }
            "strength" => self.strength = Some(strength(field)?),
            "numericOrdering" => self.numeric_ordering = flag("numericOrdering", field)?,
            "alternate" => {
                const VALUES: [Alternate; 2] = [Alternate::NonIgnorable, Alternate::Shifted];
                self.alternate = Some(one_of(&VALUES, Alternate::name, "alternate", field)?);
            }
            "maxVariable" => {
                const VALUES: [MaxVariable; 2] = [MaxVariable::Punct, MaxVariable::Space];
                self.max_variable = Some(one_of(&VALUES, MaxVariable::name, "maxVariable", field)?);
            }
            "normalization" => self.normalization = Some(flag("normalization", field)?),
            other => return Err(CollationError::UnknownField(other.to_owned())),
        }
        Ok(())
    }
}

/// `None` is the simple collation.
pub(super) fn parse(document: &RawDocument, absent: Absent) -> Result<Option<Collation>> {
    let given = Given::read(document)?;
    let locale = given.locale.ok_or(CollationError::MissingLocale)?;
    if locale == "simple" {
        return Ok(None);
    }
    check_locale(locale, document)?;
    if let Some(wanted) = given.version.filter(|version| *version != VERSION) {
        return Err(CollationError::Version {
            wanted: wanted.to_owned(),
            given: shown(document),
        });
    }
    let customs = Customs::of(locale);
    let others = match absent {
        Absent::ByLocale => Customs::of(locale),
        Absent::Plain => Customs::of(""),
    };
    let collation = Collation {
        locale: locale.to_owned(),
        case_level: given.case_level,
        case_first: given.case_first.unwrap_or(others.case_first),
        strength: given.strength.unwrap_or(Strength::Tertiary),
        numeric_ordering: given.numeric_ordering,
        alternate: given.alternate.unwrap_or(others.alternate),
        max_variable: given.max_variable.unwrap_or(MaxVariable::Punct),
        normalization: given.normalization.unwrap_or(others.normalization),
        backwards: given.backwards.unwrap_or(customs.backwards),
    };
    check(&collation, document)?;
    Ok(Some(collation))
}

fn check_locale(locale: &str, document: &RawDocument) -> Result<()> {
    let reason = if locale.is_empty() {
        "Field 'locale' cannot be the empty string"
    } else if locale.contains('\0') {
        "Field 'locale' cannot contain null byte"
    } else {
        return match locale::find(locale) {
            Some(_) => Ok(()),
            None => Err(invalid_locale(document)),
        };
    };
    Err(invalid(reason, document))
}

/// Options that mean nothing together.
fn check(collation: &Collation, document: &RawDocument) -> Result<()> {
    if collation.backwards && collation.strength == Strength::Primary {
        return Err(invalid(
            "'backwards' is invalid with 'strength' of 1",
            document,
        ));
    }
    if collation.case_first != CaseFirst::Off
        && !collation.case_level
        && collation.strength < Strength::Tertiary
    {
        return Err(invalid(
            "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2",
            document,
        ));
    }
    Ok(())
}

pub(super) fn invalid_locale(document: &RawDocument) -> CollationError {
    invalid("Field 'locale' is invalid", document)
}

fn invalid(reason: &'static str, document: &RawDocument) -> CollationError {
    CollationError::Invalid {
        reason,
        given: shown(document),
    }
}

fn shown(document: &RawDocument) -> String {
    extjson::relaxed_text(document).unwrap_or_default()
}

fn wrong_type(
    field: &'static str,
    element: &Element<'_>,
    expected: &'static str,
) -> CollationError {
    CollationError::WrongType {
        field,
        found: kind::name(&element.value()),
        expected,
    }
}

fn text<'a>(field: &'static str, element: &Element<'a>) -> Result<&'a str> {
    match element.value() {
        RawBsonRef::String(text) => Ok(text),
        _ => Err(wrong_type(field, element, "type 'string'")),
    }
}

fn flag(field: &'static str, element: &Element<'_>) -> Result<bool> {
    match element.value() {
        RawBsonRef::Boolean(flag) => Ok(flag),
        _ => Err(wrong_type(field, element, "type 'bool'")),
    }
}

/// Rounded towards zero.
fn strength(element: &Element<'_>) -> Result<Strength> {
    let Some(number) = Number::from_raw(element.value()) else {
        return Err(wrong_type(
            "strength",
            element,
            "types '[long, int, decimal, double]'",
        ));
    };
    let number = number.to_i64_saturating();
    let number = i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX });
    Ok(match number {
        1 => Strength::Primary,
        2 => Strength::Secondary,
        3 => Strength::Tertiary,
        4 => Strength::Quaternary,
        5 => Strength::Identical,
        0 => {
            return Err(CollationError::NotAValue {
                field: "strength",
                value: "0".to_owned(),
            });
        }
        low if low < 0 => return Err(CollationError::StrengthOutOfRange(">= 0", low)),
        high => return Err(CollationError::StrengthOutOfRange("<= 5", high)),
    })
}

fn one_of<T: Copy>(
    values: &[T],
    name: fn(T) -> &'static str,
    field: &'static str,
    element: &Element<'_>,
) -> Result<T> {
    let given = text(field, element)?;
    let found = values.iter().find(|value| name(**value) == given);
    found.copied().ok_or_else(|| CollationError::NotAValue {
        field,
        value: given.to_owned(),
    })
}
