//! The text form of decimals.

use std::fmt;

use num_bigint::BigUint;

use super::rounding::round;
use super::{COEFFICIENT_MAX, Decimal};

impl Decimal {
    /// Parses what the standard's text form allows; more than 34 digits are rounded.
    pub fn parse(text: &str) -> Option<Decimal> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if rest.eq_ignore_ascii_case("nan") {
            return Some(Decimal::NaN);
        }
        if rest.eq_ignore_ascii_case("inf") || rest.eq_ignore_ascii_case("infinity") {
            return Some(Decimal::Infinity { negative });
        }
        let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = Digits::default();
        for digit in whole.bytes().chain(fraction.bytes()) {
            digits.push(digit)?;
        }
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        Some(round(
            negative,
            BigUint::from(digits.coefficient),
            exponent + digits.dropped - fraction.len() as i64,
            digits.sticky,
        ))
    }
}

fn parse_exponent(text: &str) -> Option<i64> {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    if bare.is_empty() || !bare.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // More digits than any text has move the value beyond all bounds anyway.
    let magnitude = bare
        .parse()
        .map_or(EXPONENT_FAR, |n: i64| n.min(EXPONENT_FAR));
    Some(if text.starts_with('-') {
        -magnitude
    } else {
        magnitude
    })
}

const EXPONENT_FAR: i64 = 1 << 40;

/// The leading digits of a number, more of them than are kept after rounding; of the others only
/// how many there are, and whether all are zero. A text may be megabytes long.
#[derive(Default)]
struct Digits {
    coefficient: u128,
    dropped: i64,
    sticky: bool,
}

impl Digits {
    /// None if it is no digit.
    fn push(&mut self, digit: u8) -> Option<()> {
        let value = char::from(digit).to_digit(10)?;
        if self.coefficient <= 10 * COEFFICIENT_MAX {
            self.coefficient = self.coefficient * 10 + u128::from(value);
        } else {
            self.dropped += 1;
            self.sticky |= value != 0;
        }
        Some(())
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bson().fmt(f)
    }
}
