//! Sums as MongoDB keeps them: integers exactly, doubles with the error carried along, decimals
//! on their own, the type of the result the widest that was seen.

use banyan_document::number::{Decimal, Number};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    integers: i128,
    doubles: DoubleDouble,
    decimals: Decimal,
    widest: Widest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Widest {
    Int32,
    Int64,
    Double,
    Decimal,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum {
            integers: 0,
            doubles: DoubleDouble::default(),
            decimals: Decimal::ZERO,
            widest: Widest::Int32,
        }
    }
}

impl Sum {
    pub(crate) fn add(&mut self, number: Number) {
        match number {
            Number::Int32(v) => self.add_integer(i64::from(v), Widest::Int32),
            Number::Int64(v) => self.add_integer(v, Widest::Int64),
            Number::Double(v) => {
                self.widen(Widest::Double);
                self.fold_integers();
                self.doubles.add(v);
            }
            Number::Decimal(v) => {
                self.widen(Widest::Decimal);
                self.decimals = self.decimals.add(v);
            }
        }
    }

    /// Adds what another sum has gathered.
    pub(crate) fn merge(&mut self, other: &Sum) {
        self.integers += other.integers;
        if other.doubles.used {
            self.fold_integers();
            self.doubles.add(other.doubles.sum);
            // Nothing that is added rounds the sum anew.
            if other.doubles.error != 0.0 {
                self.doubles.add(other.doubles.error);
            }
        }
        self.decimals = self.decimals.add(other.decimals);
        self.widen(other.widest);
    }

    pub(crate) fn total(&self) -> Number {
        match self.widest {
            Widest::Int32 | Widest::Int64 => match i64::try_from(self.integers) {
                Ok(v) if self.widest == Widest::Int32 => Number::narrow(v),
                Ok(v) => Number::Int64(v),
                Err(_) => Number::Double(self.integers as f64),
            },
            Widest::Double => Number::Double(self.as_f64()),
            Widest::Decimal => Number::Decimal(self.as_decimal()),
        }
    }

    /// The mean over `count` values, a double or a decimal.
    pub(crate) fn average(&self, count: i64) -> Number {
        if self.widest == Widest::Decimal {
            return Number::Decimal(self.as_decimal().divide(Decimal::from_i64(count)));
        }
        Number::Double(self.as_f64() / count as f64)
    }

    fn add_integer(&mut self, value: i64, widest: Widest) {
        self.widen(widest);
        if !self.doubles.used {
            self.integers += i128::from(value);
        } else if widest == Widest::Int32 {
            self.doubles.add(value as f64);
        } else {
            self.doubles.add_integer(i128::from(value));
        }
    }

    fn widen(&mut self, to: Widest) {
        self.widest = self.widest.max(to);
    }

    fn fold_integers(&mut self) {
        let integers = std::mem::take(&mut self.integers);
        self.doubles.used = true;
        match integers.unsigned_abs() {
            0 => {}
            1..=EXACT => self.doubles.add(integers as f64),
            _ => self.doubles.add_integer(integers),
        }
    }

    fn as_f64(&self) -> f64 {
        let mut doubles = self.doubles;
        if self.integers != 0 {
            doubles.add_integer(self.integers);
        }
        doubles.sum
    }

    fn as_decimal(&self) -> Decimal {
        let mut total = self.decimals;
        if self.integers != 0 {
            let integers = Decimal::parse(&self.integers.to_string()).unwrap_or(Decimal::NaN);
            total = total.add(integers);
        }
        if self.doubles.used {
            total = total.add(Decimal::from_f64_exact(self.doubles.sum));
            if self.doubles.error != 0.0 {
                total = total.add(Decimal::from_f64_exact(self.doubles.error));
            }
        }
        total
    }

    /// Bytes that `from_bytes` reads: how a shard hands its part of a sum to the router.
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0] = self.widest as u8;
        bytes[1] = u8::from(self.doubles.used);
        bytes[2..18].copy_from_slice(&self.integers.to_le_bytes());
        bytes[18..26].copy_from_slice(&self.doubles.sum.to_le_bytes());
        bytes[26..34].copy_from_slice(&self.doubles.error.to_le_bytes());
        bytes[34..50].copy_from_slice(&self.decimals.to_bson().bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Sum> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let double = |at: usize| Some(f64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let decimal = bson::Decimal128::from_bytes(bytes[34..50].try_into().ok()?);
        let widest = match bytes[0] {
            0 => Widest::Int32,
            1 => Widest::Int64,
            2 => Widest::Double,
            3 => Widest::Decimal,
            _ => return None,
        };
        Some(Sum {
            integers: i128::from_le_bytes(bytes[2..18].try_into().ok()?),
            doubles: DoubleDouble {
                sum: double(18)?,
                error: double(26)?,
                used: bytes[1] != 0,
            },
            decimals: Decimal::from_bson(decimal),
            widest,
        })
    }
}

const BYTES: usize = 50;

/// Up to here every integer is a double.
const EXACT: u128 = 1 << 53;

/// A sum and the rounding error that it has not taken up yet.
#[derive(Clone, Copy, Debug, Default)]
struct DoubleDouble {
    sum: f64,
    error: f64,
    used: bool,
}

impl DoubleDouble {
    fn add(&mut self, value: f64) {
        self.used = true;
        let (value, low) = two_sum(value, self.error);
        let (sum, error) = two_sum(self.sum, value);
        self.sum = sum;
        // An infinity or NaN in the sum must not leave NaN where a later value counts.
        self.error = if sum.is_finite() { error + low } else { 0.0 };
    }

    /// In two parts, each exactly a double. A number of 32 bits is one by itself, and is added as
    /// it is: a second part, although it is zero, would round the sum anew.
    fn add_integer(&mut self, value: i128) {
        let low = value % (1 << 32);
        self.add(low as f64);
        self.add((value - low) as f64);
    }
}

/// The rounded sum and what rounding lost.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_seen = sum - a;
    let a_seen = sum - b_seen;
    (sum, (a - a_seen) + (b - b_seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(values: &[f64]) -> f64 {
        let mut sum = Sum::default();
        values.iter().for_each(|v| sum.add(Number::Double(*v)));
        sum.total().to_f64()
    }

    /// Figures of the reference server.
    #[test]
    fn carries_rounding_errors_like_the_reference() {
        assert_eq!(total(&[0.1, 0.2, 0.3]), 0.6);
        assert_eq!(total(&[1e16, 1.0, 1.0, -1e16]), 2.0);
        assert_eq!(total(&[1e16, 1.0, -1e16]), 0.0);
        assert_eq!(total(&[0.1; 10]), 1.0);
        assert_eq!(total(&[f64::INFINITY, 1.0]), f64::INFINITY);
        assert!(total(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
    }

    #[test]
    fn adds_short_integers_whole_and_long_ones_in_parts() {
        let total = |integer: fn(i32) -> Number| {
            let mut sum = Sum::default();
            let values = [integer(2), Number::Double(0.03490658503988659), integer(-2)];
            values.into_iter().for_each(|value| sum.add(value));
            sum.total().to_f64()
        };
        assert_eq!(total(Number::Int32), 0.03490658503988664);
        assert_eq!(total(|v| Number::Int64(v.into())), 0.03490658503988659);
    }

    #[test]
    fn keeps_the_widest_type() {
        let mut sum = Sum::default();
        sum.add(Number::Int32(i32::MAX));
        assert!(matches!(sum.total(), Number::Int32(_)));
        sum.add(Number::Int32(1));
        assert!(matches!(sum.total(), Number::Int64(2_147_483_648)));
        sum.add(Number::Int64(i64::MAX));
        assert!(matches!(sum.total(), Number::Double(_)));
        sum.add(Number::Int32(i32::MIN));
        assert!(matches!(sum.total(), Number::Int64(i64::MAX)));
    }

    #[test]
    fn survives_the_way_to_the_router() {
        let mut sum = Sum::default();
        sum.add(Number::Double(0.1));
        sum.add(Number::Int32(7));
        let mut other = Sum::from_bytes(&sum.to_bytes()).unwrap();
        other.merge(&sum);
        assert_eq!(other.total().to_f64(), 14.2);
        assert!(Sum::from_bytes(&[0; 3]).is_none());
    }
}
