//! How often a fail point fails something.

use banyan_document::{elements, kind};
use bson::RawBsonRef;

use crate::{CommandError, ErrorCode};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mode {
    #[default]
    Off,
    AlwaysOn,
    /// So often of all times, between 0 and 1.
    ActivationProbability(f64),
    /// So many times from now on.
    Times(i64),
    /// Always, but for so many times from now on.
    Skip(i64),
}

impl Mode {
    pub fn parse(value: RawBsonRef<'_>) -> Result<Mode, CommandError> {
        let bad = |text: String| Err(CommandError::new(ErrorCode::BadValue, text));
        let document = match value {
            RawBsonRef::String("off") => return Ok(Mode::Off),
            RawBsonRef::String("alwaysOn") => return Ok(Mode::AlwaysOn),
            RawBsonRef::String(other) => return bad(format!("unknown mode: {other}")),
            RawBsonRef::Document(document) => document,
            _ => {
                let text = "'mode' must be a string or JSON object";
                return Err(CommandError::new(ErrorCode::TypeMismatch, text));
            }
        };
        for element in elements(document) {
            let value = element.value();
            match element.name() {
                "times" => return times("times", value).map(Mode::Times),
                "skip" => return times("skip", value).map(Mode::Skip),
                "activationProbability" => return probability(value),
                _ => {}
            }
        }
        bad(
            "'mode' must be one of 'off', 'alwaysOn', '{times:n}', '{skip:n}' or \
             '{activationProbability:p}'"
                .to_owned(),
        )
    }

    /// Whether it fails what is there, and what it does the next time.
    pub fn hit(self) -> (bool, Mode) {
        match self {
            Mode::Off => (false, self),
            Mode::AlwaysOn => (true, self),
            Mode::ActivationProbability(probability) => (rand::random::<f64>() < probability, self),
            Mode::Times(left) => (left > 0, Mode::Times((left - 1).max(0))),
            Mode::Skip(left) => (left == 0, Mode::Skip((left - 1).max(0))),
        }
    }

    /// It fails nothing, now and later.
    pub fn is_over(self) -> bool {
        matches!(self, Mode::Off | Mode::Times(0))
    }

    /// The number under which `getParameter` shows it.
    pub fn number(self) -> i32 {
        match self {
            Mode::Off => 0,
            Mode::AlwaysOn => 1,
            Mode::ActivationProbability(_) => 2,
            Mode::Times(_) => 3,
            Mode::Skip(_) => 4,
        }
    }
}

/// How many times: an integer of any numeric type.
fn times(name: &str, value: RawBsonRef<'_>) -> Result<i64, CommandError> {
    let number = match value {
        RawBsonRef::Int32(number) => i64::from(number),
        RawBsonRef::Int64(number) => number,
        RawBsonRef::Double(number) if (number as i64) as f64 == number => number as i64,
        RawBsonRef::Double(number) => {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                format!(
                    "Expected field \"{name}\" to have a value exactly representable as a 64-bit \
                     integer, but found {name}: {number}"
                ),
            ));
        }
        other => {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                format!(
                    "Expected field \"{name}\" to have numeric type, but found {}",
                    kind::name(&other)
                ),
            ));
        }
    };
    if (0..=i64::from(i32::MAX)).contains(&number) {
        return Ok(number);
    }
    let wrong = match number < 0 {
        true => "must be positive",
        false => "is too large",
    };
    Err(CommandError::new(
        ErrorCode::BadValue,
        format!("'{name}' option to 'mode' {wrong}"),
    ))
}

fn probability(value: RawBsonRef<'_>) -> Result<Mode, CommandError> {
    let number = match value {
        RawBsonRef::Double(number) => number,
        RawBsonRef::Int32(number) => f64::from(number),
        RawBsonRef::Int64(number) => number as f64,
        _ => {
            return Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "the 'activationProbability' option to 'mode' must be a double between 0 and 1",
            ));
        }
    };
    if (0.0..=1.0).contains(&number) {
        return Ok(Mode::ActivationProbability(number));
    }
    Err(CommandError::new(
        ErrorCode::BadValue,
        format!("activationProbability must be between 0.0 and 1.0; found {number}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawBson, rawdoc};

    fn parsed(mode: impl Into<RawBson>) -> Result<Mode, i32> {
        let mode = mode.into();
        Mode::parse(mode.as_raw_bson_ref()).map_err(|error| error.code.code())
    }

    #[test]
    fn modes_are_read_as_the_reference_reads_them() {
        assert_eq!(parsed("off"), Ok(Mode::Off));
        assert_eq!(parsed("alwaysOn"), Ok(Mode::AlwaysOn));
        assert_eq!(parsed("sometimes"), Err(2));
        assert_eq!(parsed(1), Err(14));
        assert_eq!(parsed(rawdoc! {}), Err(2));
        assert_eq!(parsed(rawdoc! {"wat": 1}), Err(2));
        assert_eq!(parsed(rawdoc! {"times": 2, "skip": 1}), Ok(Mode::Times(2)));
        assert_eq!(parsed(rawdoc! {"times": 2.0}), Ok(Mode::Times(2)));
        assert_eq!(parsed(rawdoc! {"times": 2.7}), Err(2));
        assert_eq!(parsed(rawdoc! {"times": "x"}), Err(14));
        assert_eq!(parsed(rawdoc! {"skip": -2}), Err(2));
        assert_eq!(parsed(rawdoc! {"skip": 1_i64 << 40}), Err(2));
        let half = Mode::ActivationProbability(0.5);
        assert_eq!(parsed(rawdoc! {"activationProbability": 0.5}), Ok(half));
        assert_eq!(parsed(rawdoc! {"activationProbability": 2}), Err(2));
        assert_eq!(parsed(rawdoc! {"activationProbability": "a"}), Err(14));
    }

    #[test]
    fn times_and_skips_are_counted() {
        let failed = |mut mode: Mode, tries: usize| -> Vec<bool> {
            let try_once = |_| {
                let (fails, next) = mode.hit();
                mode = next;
                fails
            };
            (0..tries).map(try_once).collect()
        };
        assert_eq!(failed(Mode::Times(2), 3), [true, true, false]);
        assert_eq!(failed(Mode::Skip(2), 4), [false, false, true, true]);
        assert_eq!(failed(Mode::Times(0), 1), [false]);
        let never = failed(Mode::ActivationProbability(0.0), 50);
        assert!(!never.contains(&true));
        let always = failed(Mode::ActivationProbability(1.0), 50);
        assert!(!always.contains(&false));
    }
}
