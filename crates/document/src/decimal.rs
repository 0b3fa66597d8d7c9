//! IEEE 754 decimal128 values as BSON carries them: 34 digits, exponents from -6176 to 6111.
//!
//! `bson::Decimal128` is sixteen opaque bytes; this is the number inside. Arithmetic is exact on
//! big integers and then rounded once, half to even, to 34 digits, keeping the exponent that the
//! standard prefers (`1.20 + 3` is `4.20`), so that results agree with the reference digit by
//! digit. Here are the type and its sixteen bytes; [`mod@arithmetic`], [`mod@order`] and
//! [`mod@text`] are what can be done with it, and all of them end in [`rounding::round`].

mod arithmetic;
mod order;
mod rounding;
#[cfg(test)]
mod tests;
mod text;

use bson::Decimal128;
use num_bigint::BigUint;

use rounding::round;

/// The largest number of decimal digits in a coefficient.
pub const MAX_DIGITS: u32 = 34;
const EXPONENT_MIN: i64 = -6176;
const EXPONENT_MAX: i64 = 6111;
const EXPONENT_BIAS: i32 = 6176;
const COEFFICIENT_MAX: u128 = 10u128.pow(MAX_DIGITS) - 1;

/// A decoded decimal128. Zeros and equal values of different exponents are distinct here (they
/// print differently); `Decimal::compare` sees them as equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decimal {
    NaN,
    Infinity { negative: bool },
    Finite(Finite),
}

/// `(-1)^negative * coefficient * 10^exponent`, the coefficient below 10^34.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finite {
    pub negative: bool,
    pub coefficient: u128,
    pub exponent: i32,
}

impl Decimal {
    pub const ZERO: Decimal = Decimal::Finite(Finite {
        negative: false,
        coefficient: 0,
        exponent: 0,
    });

    pub fn from_bson(value: Decimal128) -> Decimal {
        let bits = u128::from_le_bytes(value.bytes());
        let negative = bits >> 127 == 1;
        if (bits >> 122) & 0b11111 == 0b11111 {
            return Decimal::NaN;
        }
        if (bits >> 122) & 0b11110 == 0b11110 {
            return Decimal::Infinity { negative };
        }
        let (exponent, coefficient) = if (bits >> 125) & 0b11 == 0b11 {
            // The large form stands for coefficients from 2^113 on, all above 34 digits: the
            // standard reads them as zero.
            (((bits >> 111) & 0x3fff) as i32, 0)
        } else {
            (((bits >> 113) & 0x3fff) as i32, bits & ((1u128 << 113) - 1))
        };
        let coefficient = if coefficient > COEFFICIENT_MAX {
            0
        } else {
            coefficient
        };
        Decimal::Finite(Finite {
            negative,
            coefficient,
            exponent: exponent - EXPONENT_BIAS,
        })
    }

    pub fn to_bson(self) -> Decimal128 {
        let bits = match self {
            Decimal::NaN => 0b11111u128 << 122,
            Decimal::Infinity { negative } => (u128::from(negative) << 127) | (0b11110u128 << 122),
            Decimal::Finite(f) => {
                (u128::from(f.negative) << 127)
                    | (((f.exponent + EXPONENT_BIAS) as u128) << 113)
                    | f.coefficient
            }
        };
        Decimal128::from_bytes(bits.to_le_bytes())
    }

    pub fn from_i64(value: i64) -> Decimal {
        Decimal::Finite(Finite {
            negative: value < 0,
            coefficient: u128::from(value.unsigned_abs()),
            exponent: 0,
        })
    }

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

    fn special_from_f64(value: f64) -> Option<Decimal> {
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

    /// The value as an integer if it is one and fits.
    pub fn to_i64_exact(self) -> Option<i64> {
        let Decimal::Finite(f) = self else {
            return None;
        };
        let magnitude = f.magnitude_as_integer()?;
        let signed = i128::try_from(magnitude).ok()?;
        i64::try_from(if f.negative { -signed } else { signed }).ok()
    }

    pub fn is_nan(self) -> bool {
        matches!(self, Decimal::NaN)
    }

    pub fn is_infinite(self) -> bool {
        matches!(self, Decimal::Infinity { .. })
    }

    pub fn is_zero(self) -> bool {
        matches!(self, Decimal::Finite(Finite { coefficient: 0, .. }))
    }

    pub fn is_negative(self) -> bool {
        match self {
            Decimal::NaN => false,
            Decimal::Infinity { negative } => negative,
            Decimal::Finite(f) => f.negative,
        }
    }
}

/// Which neighbour a value between two representable ones goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    HalfEven,
    Truncate,
    Floor,
    Ceiling,
}

impl Finite {
    fn digits(&self) -> i32 {
        if self.coefficient == 0 {
            1
        } else {
            self.coefficient.ilog10() as i32 + 1
        }
    }

    /// |self| as an integer, if it is one of at most 38 digits.
    fn magnitude_as_integer(&self) -> Option<u128> {
        if self.coefficient == 0 {
            return Some(0);
        }
        let exponent = self.exponent.unsigned_abs();
        if exponent > 38 {
            return None;
        }
        let power = 10u128.pow(exponent);
        if self.exponent >= 0 {
            self.coefficient.checked_mul(power)
        } else if self.coefficient.is_multiple_of(power) {
            Some(self.coefficient / power)
        } else {
            None
        }
    }
}

/// Sign, integer mantissa and binary exponent of a finite double.
fn split_f64(value: f64) -> (bool, u64, i32) {
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
