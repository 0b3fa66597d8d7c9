//! IEEE 754 decimal128 values as BSON carries them: 34 digits, exponents from -6176 to 6111.
//!
//! `bson::Decimal128` is sixteen opaque bytes; this is the number inside. Arithmetic is exact on
//! big integers and then rounded once, half to even, to 34 digits, keeping the exponent that the
//! standard prefers (`1.20 + 3` is `4.20`), so that results agree with the reference digit by
//! digit.

use std::cmp::Ordering;
use std::fmt;

use bson::Decimal128;
use num_bigint::{BigInt, BigUint, Sign};

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

    /// Total order: NaN below everything and equal to itself, zeros equal, exponents ignored.
    pub fn compare(self, other: Decimal) -> Ordering {
        use Decimal::{Finite as F, Infinity, NaN};
        match (self, other) {
            (NaN, NaN) => Ordering::Equal,
            (NaN, _) => Ordering::Less,
            (_, NaN) => Ordering::Greater,
            (Infinity { negative: a }, Infinity { negative: b }) => b.cmp(&a),
            (Infinity { negative }, F(_)) => {
                if negative {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            (F(_), Infinity { .. }) => other.compare(self).reverse(),
            (F(a), F(b)) => a.compare(&b),
        }
    }

    /// Exact comparison with a double, NaN as above.
    pub fn compare_f64(self, other: f64) -> Ordering {
        match self {
            Decimal::Finite(f) if other.is_finite() => f.compare_f64(other),
            _ => {
                let other = Decimal::special_from_f64(other).unwrap_or(Decimal::ZERO);
                self.compare(other)
            }
        }
    }

    pub fn negate(self) -> Decimal {
        match self {
            Decimal::NaN => Decimal::NaN,
            Decimal::Infinity { negative } => Decimal::Infinity {
                negative: !negative,
            },
            Decimal::Finite(f) => Decimal::Finite(Finite {
                negative: !f.negative,
                ..f
            }),
        }
    }

    pub fn abs(self) -> Decimal {
        if self.is_negative() {
            self.negate()
        } else {
            self
        }
    }

    #[expect(clippy::should_implement_trait)] // It stands beside operations that have none.
    pub fn add(self, other: Decimal) -> Decimal {
        match (self, other) {
            (Decimal::NaN, _) | (_, Decimal::NaN) => Decimal::NaN,
            (Decimal::Infinity { negative: a }, Decimal::Infinity { negative: b }) if a != b => {
                Decimal::NaN
            }
            (Decimal::Infinity { .. }, _) => self,
            (_, Decimal::Infinity { .. }) => other,
            (Decimal::Finite(a), Decimal::Finite(b)) => add_finite(a, b),
        }
    }

    pub fn subtract(self, other: Decimal) -> Decimal {
        self.add(other.negate())
    }

    pub fn multiply(self, other: Decimal) -> Decimal {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Decimal::NaN, _) | (_, Decimal::NaN) => Decimal::NaN,
            (Decimal::Finite(a), Decimal::Finite(b)) => {
                let product = BigUint::from(a.coefficient) * BigUint::from(b.coefficient);
                round(
                    negative,
                    product,
                    i64::from(a.exponent) + i64::from(b.exponent),
                    false,
                )
            }
            _ if self.is_zero() || other.is_zero() => Decimal::NaN,
            _ => Decimal::Infinity { negative },
        }
    }

    /// Division as IEEE 754 has it: by zero it gives an infinity, and NaN for 0/0.
    pub fn divide(self, other: Decimal) -> Decimal {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Decimal::NaN, _) | (_, Decimal::NaN) => Decimal::NaN,
            (Decimal::Infinity { .. }, Decimal::Infinity { .. }) => Decimal::NaN,
            (Decimal::Infinity { .. }, _) => Decimal::Infinity { negative },
            (_, Decimal::Infinity { .. }) => round(negative, BigUint::ZERO, EXPONENT_MIN, false),
            (Decimal::Finite(_), Decimal::Finite(b)) if b.coefficient == 0 => {
                if self.is_zero() {
                    Decimal::NaN
                } else {
                    Decimal::Infinity { negative }
                }
            }
            (Decimal::Finite(a), Decimal::Finite(b)) => divide_finite(negative, a, b),
        }
    }

    /// The remainder with the sign of the dividend, as `fmod`. NaN when dividing by zero.
    pub fn remainder(self, other: Decimal) -> Decimal {
        match (self, other) {
            (Decimal::Finite(_), Decimal::Infinity { .. }) => self,
            (Decimal::Finite(a), Decimal::Finite(b)) if b.coefficient != 0 => {
                let exponent = a.exponent.min(b.exponent);
                let divisor = scaled(b.coefficient, b.exponent, exponent);
                // Far apart exponents would make a huge dividend; modular exponentiation keeps
                // it as small as the divisor.
                let shift = BigUint::from((a.exponent - exponent).unsigned_abs());
                let power = BigUint::from(10u32).modpow(&shift, &divisor);
                let rest = (BigUint::from(a.coefficient) % &divisor * power) % &divisor;
                round(a.negative, rest, i64::from(exponent), false)
            }
            _ => Decimal::NaN,
        }
    }

    /// Rounds to `places` digits after the point (before it when negative).
    pub fn round_to(self, places: i32, rounding: Rounding) -> Decimal {
        let Decimal::Finite(f) = self else {
            return self;
        };
        let drop = -i64::from(places) - i64::from(f.exponent);
        if drop <= 0 {
            // Fewer digits than asked for: pad with zeros where the coefficient has room.
            let scaled = u32::try_from(-drop)
                .ok()
                .filter(|&n| n <= MAX_DIGITS)
                .and_then(|n| f.coefficient.checked_mul(10u128.pow(n)));
            return match scaled {
                Some(coefficient) if coefficient <= COEFFICIENT_MAX => Decimal::Finite(Finite {
                    coefficient,
                    exponent: -places,
                    ..f
                }),
                _ => self,
            };
        }
        if drop > i64::from(MAX_DIGITS) + 1 {
            let up = f.coefficient != 0
                && match rounding {
                    Rounding::Floor => f.negative,
                    Rounding::Ceiling => !f.negative,
                    Rounding::HalfEven | Rounding::Truncate => false,
                };
            return round(
                f.negative,
                BigUint::from(u8::from(up)),
                -i64::from(places),
                false,
            );
        }
        let divisor = BigUint::from(10u32).pow(drop as u32);
        let coefficient = BigUint::from(f.coefficient);
        let mut quotient = &coefficient / &divisor;
        let rest = &coefficient - &quotient * &divisor;
        let away = match rounding {
            Rounding::Truncate => false,
            Rounding::Floor => f.negative && rest != BigUint::ZERO,
            Rounding::Ceiling => !f.negative && rest != BigUint::ZERO,
            Rounding::HalfEven => match (rest * 2u32).cmp(&divisor) {
                Ordering::Less => false,
                Ordering::Greater => true,
                Ordering::Equal => quotient.bit(0),
            },
        };
        if away {
            quotient += 1u32;
        }
        round(f.negative, quotient, -i64::from(places), false)
    }

    /// The square root; NaN below zero.
    pub fn sqrt(self) -> Decimal {
        match self {
            Decimal::Finite(f) if f.coefficient == 0 => round(
                f.negative,
                BigUint::ZERO,
                i64::from(f.exponent).div_euclid(2),
                false,
            ),
            _ if self.is_negative() => Decimal::NaN,
            Decimal::Finite(f) => sqrt_finite(f),
            other => other,
        }
    }

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
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            Some(at) => {
                let digits = &rest[at + 1..];
                let bare = digits.strip_prefix(['+', '-']).unwrap_or(digits);
                if bare.is_empty() || !bare.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                // An exponent of a hundred digits is as good as one of seven.
                let value = digits
                    .parse::<i64>()
                    .unwrap_or(9_999_999)
                    .clamp(-9_999_999, 9_999_999);
                (
                    &rest[..at],
                    if digits.starts_with('-') {
                        -value.abs()
                    } else {
                        value
                    },
                )
            }
            None => (rest, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits = [whole, fraction].concat();
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let coefficient = BigUint::parse_bytes(digits.as_bytes(), 10)?;
        Some(round(
            negative,
            coefficient,
            exponent - fraction.len() as i64,
            false,
        ))
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

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bson().fmt(f)
    }
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

    fn compare(&self, other: &Finite) -> Ordering {
        match (self.coefficient == 0, other.coefficient == 0) {
            (true, true) => return Ordering::Equal,
            (true, false) => return sign_order(!other.negative).reverse(),
            (false, true) => return sign_order(!self.negative),
            (false, false) => {}
        }
        if self.negative != other.negative {
            return sign_order(!self.negative);
        }
        // The position of the leading digit decides unless it is the same; then the exponents
        // are at most 33 apart and the scaled coefficients fit.
        let magnitude = (self.digits() + self.exponent)
            .cmp(&(other.digits() + other.exponent))
            .then_with(|| {
                let low = self.exponent.min(other.exponent);
                let a = BigUint::from(self.coefficient) * power_of_ten(self.exponent - low);
                let b = BigUint::from(other.coefficient) * power_of_ten(other.exponent - low);
                a.cmp(&b)
            });
        if self.negative {
            magnitude.reverse()
        } else {
            magnitude
        }
    }

    fn compare_f64(&self, other: f64) -> Ordering {
        if self.coefficient == 0 || other == 0.0 {
            let ours = if self.coefficient == 0 {
                0.0
            } else {
                sign_of(self.negative)
            };
            let theirs = if other == 0.0 {
                0.0
            } else {
                sign_of(other < 0.0)
            };
            return ours.partial_cmp(&theirs).unwrap_or(Ordering::Equal);
        }
        if self.negative != (other < 0.0) {
            return sign_order(!self.negative);
        }
        let leading = self.digits() + self.exponent;
        // Doubles lie between 10^-324 and 10^309.
        let magnitude = if leading > 310 {
            Ordering::Greater
        } else if leading < -325 {
            Ordering::Less
        } else {
            let (_, mantissa, exponent) = split_f64(other);
            let mut ours = BigUint::from(self.coefficient);
            let mut theirs = BigUint::from(mantissa);
            if self.exponent >= 0 {
                ours *= power_of_ten(self.exponent);
            } else {
                theirs *= power_of_ten(-self.exponent);
            }
            if exponent >= 0 {
                theirs <<= exponent as usize;
            } else {
                ours <<= exponent.unsigned_abs() as usize;
            }
            ours.cmp(&theirs)
        };
        if self.negative {
            magnitude.reverse()
        } else {
            magnitude
        }
    }
}

fn sign_of(negative: bool) -> f64 {
    if negative { -1.0 } else { 1.0 }
}

fn sign_order(positive: bool) -> Ordering {
    if positive {
        Ordering::Greater
    } else {
        Ordering::Less
    }
}

fn power_of_ten(exponent: i32) -> BigUint {
    BigUint::from(10u32).pow(exponent.unsigned_abs())
}

fn scaled(coefficient: u128, from: i32, to: i32) -> BigUint {
    BigUint::from(coefficient) * power_of_ten(from - to)
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

fn add_finite(a: Finite, b: Finite) -> Decimal {
    let (high, low) = if a.exponent >= b.exponent {
        (a, b)
    } else {
        (b, a)
    };
    let distance = high.exponent - low.exponent;
    // Beyond this distance the lower operand is less than a thousandth of the last digit kept
    // and only its being there matters.
    let far = high.coefficient != 0 && distance > 2 * MAX_DIGITS as i32 + 3;
    let (low_coefficient, exponent) = if far {
        (
            u128::from(low.coefficient != 0),
            high.exponent - MAX_DIGITS as i32 - 3,
        )
    } else {
        (low.coefficient, low.exponent)
    };
    let high_value = if high.coefficient == 0 {
        BigUint::ZERO
    } else {
        scaled(high.coefficient, high.exponent, exponent)
    };
    let sign = |negative| if negative { Sign::Minus } else { Sign::Plus };
    let sum = BigInt::from_biguint(sign(high.negative), high_value)
        + BigInt::from_biguint(sign(low.negative), BigUint::from(low_coefficient));
    let negative = match sum.sign() {
        Sign::Minus => true,
        Sign::Plus => false,
        Sign::NoSign => a.negative && b.negative,
    };
    round(negative, sum.into_parts().1, i64::from(exponent), false)
}

fn divide_finite(negative: bool, a: Finite, b: Finite) -> Decimal {
    let ideal = i64::from(a.exponent) - i64::from(b.exponent);
    if a.coefficient == 0 {
        return round(negative, BigUint::ZERO, ideal, false);
    }
    let shift = (MAX_DIGITS as i32 + 2 + b.digits() - a.digits()).max(0);
    let dividend = BigUint::from(a.coefficient) * power_of_ten(shift);
    let divisor = BigUint::from(b.coefficient);
    let mut quotient = &dividend / &divisor;
    let sticky = &quotient * &divisor != dividend;
    let mut exponent = ideal - i64::from(shift);
    // An exact quotient goes back to the exponent the standard prefers.
    while !sticky && exponent < ideal && &quotient % 10u32 == BigUint::ZERO {
        quotient /= 10u32;
        exponent += 1;
    }
    round(negative, quotient, exponent, sticky)
}

fn sqrt_finite(f: Finite) -> Decimal {
    let ideal = i64::from(f.exponent).div_euclid(2);
    // Twice the digits wanted, and an even exponent.
    let mut shift = 2 * (MAX_DIGITS as i32 + 2);
    if (f.exponent - shift) % 2 != 0 {
        shift += 1;
    }
    let radicand = BigUint::from(f.coefficient) * power_of_ten(shift);
    let mut root = radicand.sqrt();
    let sticky = &root * &root != radicand;
    let mut exponent = i64::from((f.exponent - shift) / 2);
    while !sticky && exponent < ideal && &root % 10u32 == BigUint::ZERO {
        root /= 10u32;
        exponent += 1;
    }
    round(false, root, exponent, sticky)
}

/// The nearest decimal128, ties to even. `sticky` says that nonzero digits were cut off below
/// the coefficient.
pub(crate) fn round(negative: bool, coefficient: BigUint, exponent: i64, sticky: bool) -> Decimal {
    let digits = if coefficient == BigUint::ZERO {
        1
    } else {
        decimal_digits(&coefficient)
    };
    let excess = (digits - i64::from(MAX_DIGITS))
        .max(EXPONENT_MIN - exponent)
        .max(0);
    let (mut coefficient, mut exponent) = (coefficient, exponent);
    if excess > digits + 1 {
        coefficient = BigUint::ZERO;
        exponent += excess;
    } else if excess > 0 {
        let divisor = BigUint::from(10u32).pow(excess as u32);
        let mut quotient = &coefficient / &divisor;
        let rest = coefficient - &quotient * &divisor;
        let up = match (rest * 2u32).cmp(&divisor) {
            Ordering::Less => false,
            Ordering::Greater => true,
            Ordering::Equal => sticky || quotient.bit(0),
        };
        if up {
            quotient += 1u32;
        }
        coefficient = quotient;
        exponent += excess;
    }
    let mut coefficient = u128::try_from(coefficient).unwrap_or(COEFFICIENT_MAX + 1);
    if coefficient > COEFFICIENT_MAX {
        // Rounding up carried into a 35th digit.
        coefficient /= 10;
        exponent += 1;
    }
    if coefficient == 0 {
        exponent = exponent.clamp(EXPONENT_MIN, EXPONENT_MAX);
    }
    while exponent > EXPONENT_MAX {
        if coefficient > COEFFICIENT_MAX / 10 {
            return Decimal::Infinity { negative };
        }
        coefficient *= 10;
        exponent -= 1;
    }
    Decimal::Finite(Finite {
        negative,
        coefficient,
        exponent: exponent as i32,
    })
}

fn decimal_digits(value: &BigUint) -> i64 {
    // bits * log10(2) is right or one too low.
    let estimate = ((value.bits() - 1) as f64 * std::f64::consts::LOG10_2) as u32;
    let estimate_power = BigUint::from(10u32).pow(estimate);
    let mut digits = i64::from(estimate);
    let mut power = estimate_power;
    while power <= *value {
        power *= 10u32;
        digits += 1;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn decodes_and_encodes_like_the_bson_crate() {
        for text in [
            "0",
            "-0",
            "1",
            "1.20",
            "-12.5E+3",
            "9.999999999999999999999999999999999E+6144",
            "1E-6176",
            "NaN",
            "Infinity",
            "-Infinity",
            "0E+3",
            "0.000001",
        ] {
            let bytes: Decimal128 = text.parse().unwrap();
            let ours = Decimal::from_bson(bytes);
            assert_eq!(ours.to_bson(), bytes, "{text}");
            assert_eq!(decimal(text), ours, "{text}");
        }
    }

    #[test]
    fn arithmetic_keeps_preferred_exponents() {
        let cases = [
            (decimal("1.20").add(decimal("3")), "4.20"),
            (decimal("1.20").multiply(decimal("3.0")), "3.600"),
            (
                decimal("1").divide(decimal("3")),
                "0.3333333333333333333333333333333333",
            ),
            (
                decimal("2").divide(decimal("3")),
                "0.6666666666666666666666666666666667",
            ),
            (decimal("10").divide(decimal("2")), "5"),
            (decimal("1E3").divide(decimal("4")), "2.5E+2"),
            (decimal("100").divide(decimal("1E1")), "10.0"),
            (decimal("-5.5").remainder(decimal("2")), "-1.5"),
            (decimal("1E30").remainder(decimal("7")), "1"),
            (decimal("2").sqrt(), "1.414213562373095048801688724209698"),
            (decimal("4").sqrt(), "2"),
            (
                decimal("1E33").add(decimal("1E-40")),
                "1000000000000000000000000000000000",
            ),
            (
                decimal("1").subtract(decimal("1E-90")),
                "1.000000000000000000000000000000000",
            ),
            (decimal("9.9E6144").multiply(decimal("10")), "Infinity"),
            (decimal("1E-6176").divide(decimal("10")), "0E-6176"),
            (decimal("2.5").round_to(0, Rounding::HalfEven), "2"),
            (decimal("-2.5").round_to(0, Rounding::Floor), "-3"),
            (decimal("1234").round_to(-2, Rounding::HalfEven), "1.2E+3"),
        ];
        for (got, expected) in cases {
            assert_eq!(got.to_string(), expected);
        }
    }

    #[test]
    fn doubles_convert_at_15_and_at_34_digits() {
        assert_eq!(Decimal::from_f64(0.1).to_string(), "0.100000000000000");
        assert_eq!(Decimal::from_f64(2.5).to_string(), "2.50000000000000");
        assert_eq!(Decimal::from_f64(1e15).to_string(), "1.00000000000000E+15");
        assert_eq!(
            Decimal::from_f64_exact(0.1).to_string(),
            "0.1000000000000000055511151231257827"
        );
        assert_eq!(Decimal::from_f64_exact(2.5).to_string(), "2.5");
    }

    #[test]
    fn compares_exactly_with_doubles() {
        assert_eq!(decimal("0.1").compare_f64(0.1), Ordering::Less);
        assert_eq!(decimal("0.50").compare_f64(0.5), Ordering::Equal);
        assert_eq!(decimal("1E400").compare_f64(f64::MAX), Ordering::Greater);
        assert_eq!(
            decimal("-1E-400").compare_f64(-f64::MIN_POSITIVE),
            Ordering::Greater
        );
        assert_eq!(Decimal::NaN.compare_f64(f64::NEG_INFINITY), Ordering::Less);
        assert_eq!(Decimal::NaN.compare_f64(f64::NAN), Ordering::Equal);
    }
}
