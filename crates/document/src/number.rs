//! BSON's four kinds of number as one type, with MongoDB's promotion rules.
//!
//! Int32 with Int32 stays Int32 while the result fits and becomes Int64 when it does not; Int64
//! that overflows becomes a double (`add`) or is refused (`checked_add`, for `$inc`); a double
//! makes the result a double, a decimal a decimal. Comparison is exact across all of them.

use std::cmp::Ordering;

use bson::RawBsonRef;

pub use crate::decimal::{Decimal, Rounding};

#[derive(Clone, Copy, Debug)]
pub enum Number {
    Int32(i32),
    Int64(i64),
    Double(f64),
    Decimal(Decimal),
}

use Number::{Decimal as Dec, Double, Int32, Int64};

impl Number {
    pub fn from_raw(value: RawBsonRef<'_>) -> Option<Number> {
        match value {
            RawBsonRef::Int32(v) => Some(Int32(v)),
            RawBsonRef::Int64(v) => Some(Int64(v)),
            RawBsonRef::Double(v) => Some(Double(v)),
            RawBsonRef::Decimal128(v) => Some(Dec(Decimal::from_bson(v))),
            _ => None,
        }
    }

    pub fn to_raw(self) -> RawBsonRef<'static> {
        match self {
            Int32(v) => RawBsonRef::Int32(v),
            Int64(v) => RawBsonRef::Int64(v),
            Double(v) => RawBsonRef::Double(v),
            Dec(v) => RawBsonRef::Decimal128(v.to_bson()),
        }
    }

    pub fn to_f64(self) -> f64 {
        match self {
            Int32(v) => f64::from(v),
            Int64(v) => v as f64,
            Double(v) => v,
            Dec(v) => v.to_f64(),
        }
    }

    pub fn to_decimal(self) -> Decimal {
        match self {
            Int32(v) => Decimal::from_i64(i64::from(v)),
            Int64(v) => Decimal::from_i64(v),
            Double(v) => Decimal::from_f64(v),
            Dec(v) => v,
        }
    }

    /// The value as an integer if it is one and fits, whatever its type.
    pub fn to_i64_exact(self) -> Option<i64> {
        match self {
            Int32(v) => Some(i64::from(v)),
            Int64(v) => Some(v),
            Double(v) => f64_to_i64_exact(v),
            Dec(v) => v.to_i64_exact(),
        }
    }

    pub fn to_i32_exact(self) -> Option<i32> {
        self.to_i64_exact().and_then(|v| i32::try_from(v).ok())
    }

    /// The integer part, clamped to 64 bits; NaN is 0.
    pub fn to_i64_saturating(self) -> i64 {
        match self {
            Int32(v) => i64::from(v),
            Int64(v) => v,
            Double(v) => v as i64,
            Dec(v) => {
                let whole = v.round_to(0, Rounding::Truncate);
                whole
                    .to_i64_exact()
                    .unwrap_or_else(|| whole.to_f64() as i64)
            }
        }
    }

    /// The same, though a decimal goes to the nearest whole number, and to the even one between two.
    pub fn to_i64_rounded(self) -> i64 {
        match self {
            Dec(v) => Dec(v.round_to(0, Rounding::HalfEven)).to_i64_saturating(),
            other => other.to_i64_saturating(),
        }
    }

    pub fn is_nan(self) -> bool {
        match self {
            Double(v) => v.is_nan(),
            Dec(v) => v.is_nan(),
            Int32(_) | Int64(_) => false,
        }
    }

    pub fn is_infinite(self) -> bool {
        match self {
            Double(v) => v.is_infinite(),
            Dec(v) => v.is_infinite(),
            Int32(_) | Int64(_) => false,
        }
    }

    pub fn is_finite(self) -> bool {
        !self.is_nan() && !self.is_infinite()
    }

    pub fn is_zero(self) -> bool {
        match self {
            Int32(v) => v == 0,
            Int64(v) => v == 0,
            Double(v) => v == 0.0,
            Dec(v) => v.is_zero(),
        }
    }

    /// Int32 where it fits, else Int64.
    pub fn narrow(value: i64) -> Number {
        i32::try_from(value).map_or(Int64(value), Int32)
    }

    /// The sum; a 64-bit overflow goes on as a double.
    #[expect(clippy::should_implement_trait)] // It stands beside operations that have none.
    pub fn add(self, other: Number) -> Number {
        self.checked_add(other)
            .unwrap_or_else(|| Double(self.to_f64() + other.to_f64()))
    }

    /// The sum; `None` on a 64-bit overflow.
    pub fn checked_add(self, other: Number) -> Option<Number> {
        self.checked(other, i64::checked_add, |a, b| a + b, Decimal::add)
    }

    pub fn subtract(self, other: Number) -> Number {
        self.checked(other, i64::checked_sub, |a, b| a - b, Decimal::subtract)
            .unwrap_or_else(|| Double(self.to_f64() - other.to_f64()))
    }

    pub fn multiply(self, other: Number) -> Number {
        self.checked_multiply(other)
            .unwrap_or_else(|| Double(self.to_f64() * other.to_f64()))
    }

    pub fn checked_multiply(self, other: Number) -> Option<Number> {
        self.checked(other, i64::checked_mul, |a, b| a * b, Decimal::multiply)
    }

    /// The quotient, never an integer type; `None` when dividing by zero.
    pub fn divide(self, other: Number) -> Option<Number> {
        if other.is_zero() {
            return None;
        }
        Some(match (self, other) {
            (Dec(_), _) | (_, Dec(_)) => Dec(self.to_decimal().divide(other.to_decimal())),
            _ => Double(self.to_f64() / other.to_f64()),
        })
    }

    /// The remainder with the sign of the dividend; `None` when dividing by zero.
    pub fn remainder(self, other: Number) -> Option<Number> {
        if other.is_zero() {
            return None;
        }
        Some(match (self, other) {
            (Dec(_), _) | (_, Dec(_)) => Dec(self.to_decimal().remainder(other.to_decimal())),
            (Double(_), _) | (_, Double(_)) => Double(self.to_f64() % other.to_f64()),
            (Int32(a), Int32(b)) => Int32(a.wrapping_rem(b)),
            (Int32(_) | Int64(_), Int32(_) | Int64(_)) => {
                let divide = |n: Number| n.to_i64_exact().unwrap_or(0);
                Int64(divide(self).wrapping_rem(divide(other)))
            }
        })
    }

    /// The negation; that of the lowest Int64 is a double.
    pub fn negate(self) -> Number {
        match self {
            Int32(v) => v.checked_neg().map_or(Int64(-i64::from(v)), Int32),
            Int64(v) => v.checked_neg().map_or(Double(-(v as f64)), Int64),
            Double(v) => Double(-v),
            Dec(v) => Dec(v.negate()),
        }
    }

    /// Exact numeric order across types. NaN is below every number and equal to itself.
    pub fn compare(self, other: Number) -> Ordering {
        match (self, other) {
            (Int32(a), Int32(b)) => a.cmp(&b),
            (Int64(a), Int64(b)) => a.cmp(&b),
            (Int32(a), Int64(b)) => i64::from(a).cmp(&b),
            (Int64(a), Int32(b)) => a.cmp(&i64::from(b)),
            (Double(a), Double(b)) => compare_f64(a, b),
            (Int32(a), Double(b)) => compare_f64(f64::from(a), b),
            (Double(a), Int32(b)) => compare_f64(a, f64::from(b)),
            (Int64(a), Double(b)) => compare_i64_f64(a, b),
            (Double(a), Int64(b)) => compare_i64_f64(b, a).reverse(),
            (Dec(a), Double(b)) => a.compare_f64(b),
            (Double(a), Dec(b)) => b.compare_f64(a).reverse(),
            (Dec(a), _) => a.compare(other.to_decimal()),
            (_, Dec(b)) => self.to_decimal().compare(b),
        }
    }

    fn checked(
        self,
        other: Number,
        integers: fn(i64, i64) -> Option<i64>,
        doubles: fn(f64, f64) -> f64,
        decimals: fn(Decimal, Decimal) -> Decimal,
    ) -> Option<Number> {
        match (self, other) {
            (Dec(_), _) | (_, Dec(_)) => Some(Dec(decimals(self.to_decimal(), other.to_decimal()))),
            (Double(_), _) | (_, Double(_)) => Some(Double(doubles(self.to_f64(), other.to_f64()))),
            (Int32(a), Int32(b)) => integers(i64::from(a), i64::from(b)).map(Number::narrow),
            (Int32(a), Int64(b)) => integers(i64::from(a), b).map(Int64),
            (Int64(a), Int32(b)) => integers(a, i64::from(b)).map(Int64),
            (Int64(a), Int64(b)) => integers(a, b).map(Int64),
        }
    }
}

/// NaN lowest, zeros equal.
pub fn compare_f64(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// Exact, where converting either side would round.
pub fn compare_i64_f64(a: i64, b: f64) -> Ordering {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    if b.is_nan() {
        return Ordering::Greater;
    }
    if b >= TWO_TO_63 {
        return Ordering::Less;
    }
    if b < -TWO_TO_63 {
        return Ordering::Greater;
    }
    let whole = b.trunc();
    a.cmp(&(whole as i64)).then_with(|| compare_f64(whole, b))
}

fn f64_to_i64_exact(value: f64) -> Option<i64> {
    let in_range = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
    (in_range && value.trunc() == value).then_some(value as i64)
}

/// What MongoDB takes for yes where a command or an operator asks for a flag: anything but false,
/// zero of any kind and nothing.
pub fn is_true(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Null | RawBsonRef::Undefined => false,
        RawBsonRef::Boolean(value) => value,
        other => Number::from_raw(other).is_none_or(|number| !number.is_zero()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotes_on_overflow() {
        assert!(matches!(
            Int32(i32::MAX).add(Int32(1)),
            Int64(2_147_483_648)
        ));
        assert!(matches!(Int64(1).add(Int32(1)), Int64(2)));
        assert!(matches!(Int64(i64::MAX).add(Int32(1)), Double(_)));
        assert!(Int64(i64::MAX).checked_add(Int32(1)).is_none());
        assert!(matches!(Int32(4).divide(Int32(2)), Some(Double(2.0))));
        assert!(Int32(4).divide(Int32(0)).is_none());
        assert!(matches!(
            Int64(i64::MIN).remainder(Int32(-1)),
            Some(Int64(0))
        ));
        assert!(matches!(Int32(i32::MIN).negate(), Int64(2_147_483_648)));
    }

    #[test]
    fn compares_exactly_across_types() {
        let big = 9_007_199_254_740_993i64; // 2^53 + 1: not a double
        assert_eq!(Int64(big).compare(Double(big as f64)), Ordering::Greater);
        assert_eq!(
            Int64(i64::MAX).compare(Double(i64::MAX as f64)),
            Ordering::Less
        );
        assert_eq!(Int32(1).compare(Double(1.5)), Ordering::Less);
        assert_eq!(Int32(-1).compare(Double(-1.5)), Ordering::Greater);
        assert_eq!(Int64(-1).compare(Double(-1.5)), Ordering::Greater);
        assert_eq!(
            Double(f64::NAN).compare(Double(f64::NEG_INFINITY)),
            Ordering::Less
        );
        assert_eq!(Int64(0).compare(Double(-0.0)), Ordering::Equal);
        assert_eq!(
            Dec(Decimal::from_i64(big)).compare(Int64(big)),
            Ordering::Equal
        );
    }
}
