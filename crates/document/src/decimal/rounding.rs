//! Rounding to what sixteen bytes can hold, and the powers of ten that it takes.

use std::cmp::Ordering;

use num_bigint::BigUint;

use super::{COEFFICIENT_MAX, Decimal, EXPONENT_MAX, EXPONENT_MIN, Finite, MAX_DIGITS};

/// The nearest decimal128, ties to even. `sticky` says that nonzero digits were cut off below
/// the coefficient.
pub(super) fn round(negative: bool, coefficient: BigUint, exponent: i64, sticky: bool) -> Decimal {
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

pub(super) fn power_of_ten(exponent: i32) -> BigUint {
    BigUint::from(10u32).pow(exponent.unsigned_abs())
}

pub(super) fn scaled(coefficient: u128, from: i32, to: i32) -> BigUint {
    BigUint::from(coefficient) * power_of_ten(from - to)
}
