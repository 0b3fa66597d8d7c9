//! Doubles as decimals, and back.

use num_bigint::BigUint;

use super::rounding::round;
use super::{Decimal, Finite};

impl Decimal {
    /// The double rounded to 15 significant digits, all of them kept (`2.5` is
    /// `2.50000000000000`), as MongoDB converts doubles outside of sums.
    pub fn from_f64(value: f64) -> Decimal {
        if let Some(special) = Decimal::special_from_f64(value) {
            return special;
        }
        // Rust prints the exact value correctly rounded: d.dddddddddddddde±x.
        let text = format!("{:.14e}", value.abs());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        let exponent: i64 = exponent.parse().unwrap_or(0);
        let coefficient: u128 = digits.parse().unwrap_or(0);
        round(
            value.is_sign_negative(),
            BigUint::from(coefficient),
            exponent - 14,
            false,
        )
    }

    /// The double's exact value rounded to 34 digits.
    pub fn from_f64_exact(value: f64) -> Decimal {
        if let Some(special) = Decimal::special_from_f64(value) {
            return special;
        }
        let (negative, mantissa, exponent) = split_f64(value);
        if exponent >= 0 {
            return round(
                negative,
                BigUint::from(mantissa) << exponent as usize,
                0,
                false,
            );
        }
        // m / 2^k == m * 5^k / 10^k: every double has an exact decimal expansion. Trailing zeros
        // are dropped first so that small numbers keep small exponents.
        let zeros = mantissa.trailing_zeros().min(exponent.unsigned_abs());
        let power = exponent.unsigned_abs() - zeros;
        let coefficient = BigUint::from(mantissa >> zeros) * BigUint::from(5u32).pow(power);
        round(negative, coefficient, -i64::from(power), false)
    }

    pub(super) fn special_from_f64(value: f64) -> Option<Decimal> {
        if value.is_nan() {
            Some(Decimal::NaN)
        } else if value.is_infinite() {
            Some(Decimal::Infinity {
                negative: value < 0.0,
            })
        } else if value == 0.0 {
            let negative = value.is_sign_negative();
            Some(Decimal::Finite(Finite {
                negative,
                coefficient: 0,
                exponent: 0,
            }))
        } else {
            None
        }
    }

    pub fn to_f64(self) -> f64 {
        match self {
            Decimal::NaN => f64::NAN,
            Decimal::Infinity { negative: false } => f64::INFINITY,
            Decimal::Infinity { negative: true } => f64::NEG_INFINITY,
            Decimal::Finite(f) => {
                // The standard parser rounds correctly whatever the number of digits.
                let sign = if f.negative { "-" } else { "" };
                format!("{sign}{}e{}", f.coefficient, f.exponent)
                    .parse()
                    .unwrap_or(f64::NAN)
            }
        }
    }
}

/// Sign, integer mantissa and binary exponent of a finite double.
pub(super) fn split_f64(value: f64) -> (bool, u64, i32) {
    let bits = value.to_bits();
    let biased = ((bits >> 52) & 0x7ff) as i32;
    let fraction = bits & ((1 << 52) - 1);
    let (mantissa, exponent) = if biased == 0 {
        (fraction, -1074)
    } else {
        (fraction | 1 << 52, biased - 1075)
    };
    (value.is_sign_negative(), mantissa, exponent)
}
