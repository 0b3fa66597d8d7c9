//! Arithmetic on decimals: exact on big integers, then rounded once.

use std::cmp::Ordering;

use num_bigint::{BigInt, BigUint, Sign};

use super::rounding::{power_of_ten, round, scaled};
use super::{COEFFICIENT_MAX, Decimal, EXPONENT_MIN, Finite, MAX_DIGITS, Rounding};

impl Decimal {
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
            // Fewer digits than asked for: pad with zeros as far as the coefficient has room.
            if f.coefficient == 0 {
                let exponent = -places;
                return Decimal::Finite(Finite { exponent, ..f });
            }
            let mut padded = f;
            while padded.exponent > -places && padded.coefficient * 10 <= COEFFICIENT_MAX {
                padded.coefficient *= 10;
                padded.exponent -= 1;
            }
            return Decimal::Finite(padded);
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
