//! IEEE 754 decimal128 values as BSON carries them: 34 digits, exponents from -6176 to 6111.
//!
//! `bson::Decimal128` is sixteen opaque bytes; this is the number inside. Arithmetic is exact on
//! big integers and then rounded once, half to even, to 34 digits, keeping the exponent that the
//! standard prefers (`1.20 + 3` is `4.20`), so that results agree with the reference digit by
//! digit. Here are the type and its sixteen bytes; [`mod@arithmetic`], [`mod@functions`],
//! [`mod@order`], [`mod@double`] and [`mod@text`] are what can be done with it, and what is
//! computed ends in [`rounding::round`].

mod arithmetic;
mod double;
mod functions;
mod order;
mod rounding;
#[cfg(test)]
mod tests;
mod text;

use bson::Decimal128;

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
