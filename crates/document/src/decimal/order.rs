//! The order of decimals, among themselves and with doubles.

use std::cmp::Ordering;

use num_bigint::BigUint;

use super::double::split_f64;
use super::rounding::power_of_ten;
use super::{Decimal, Finite};

impl Decimal {
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
}

impl Finite {
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
