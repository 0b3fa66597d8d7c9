//! Powers, logarithms and angles of decimals.
//!
//! They are those of Intel's decimal floating-point library, which MongoDB computes them with: no
//! standard says what the last of 34 digits is, nor how many zeros stand behind an exact result.
//! Only powers are rounded better here, as the library is a later one.

use dfp_number_sys::bid128_000 as intel;
use dfp_number_sys::{BID128, ExcFlags, RND_NEAREST_EVEN, RndMode};

use super::{Decimal, EXPONENT_MIN, Finite};

type Unary = fn(BID128, RndMode, &mut ExcFlags) -> BID128;
type Binary = fn(BID128, BID128, RndMode, &mut ExcFlags) -> BID128;

impl Decimal {
    pub fn exp(self) -> Decimal {
        self.apply(intel::bid128_exp)
    }

    /// The natural logarithm.
    pub fn ln(self) -> Decimal {
        self.apply(intel::bid128_log)
    }

    pub fn log2(self) -> Decimal {
        self.apply(intel::bid128_log2)
    }

    pub fn log10(self) -> Decimal {
        self.apply(intel::bid128_log10)
    }

    /// The power, with as many digits as there is room for: 2 to the third is `8.000…`.
    pub fn pow(self, exponent: Decimal) -> Decimal {
        let least_zero = Decimal::Finite(Finite {
            negative: false,
            coefficient: 0,
            exponent: EXPONENT_MIN as i32,
        });
        self.apply_with(intel::bid128_pow, exponent).add(least_zero)
    }

    pub fn sin(self) -> Decimal {
        self.apply(intel::bid128_sin)
    }

    pub fn cos(self) -> Decimal {
        self.apply(intel::bid128_cos)
    }

    pub fn tan(self) -> Decimal {
        self.apply(intel::bid128_tan)
    }

    pub fn asin(self) -> Decimal {
        self.apply(intel::bid128_asin)
    }

    pub fn acos(self) -> Decimal {
        self.apply(intel::bid128_acos)
    }

    pub fn atan(self) -> Decimal {
        self.apply(intel::bid128_atan)
    }

    /// The angle of the point with this ordinate and that abscissa.
    pub fn atan2(self, abscissa: Decimal) -> Decimal {
        self.apply_with(intel::bid128_atan2, abscissa)
    }

    pub fn sinh(self) -> Decimal {
        self.apply(intel::bid128_sinh)
    }

    pub fn cosh(self) -> Decimal {
        self.apply(intel::bid128_cosh)
    }

    pub fn tanh(self) -> Decimal {
        self.apply(intel::bid128_tanh)
    }

    pub fn asinh(self) -> Decimal {
        self.apply(intel::bid128_asinh)
    }

    pub fn acosh(self) -> Decimal {
        self.apply(intel::bid128_acosh)
    }

    pub fn atanh(self) -> Decimal {
        self.apply(intel::bid128_atanh)
    }

    pub fn to_radians(self) -> Decimal {
        self.multiply(RADIANS_PER_DEGREE)
    }

    pub fn to_degrees(self) -> Decimal {
        self.multiply(DEGREES_PER_RADIAN)
    }

    fn apply(self, function: Unary) -> Decimal {
        let mut flags = 0;
        from_library(function(self.to_library(), RND_NEAREST_EVEN, &mut flags))
    }

    fn apply_with(self, function: Binary, other: Decimal) -> Decimal {
        let (a, b) = (self.to_library(), other.to_library());
        let mut flags = 0;
        from_library(function(a, b, RND_NEAREST_EVEN, &mut flags))
    }

    /// The library has BSON's own layout.
    fn to_library(self) -> BID128 {
        let bits = u128::from_le_bytes(self.to_bson().bytes());
        BID128::new(bits as u64, (bits >> 64) as u64)
    }
}

/// π / 180 and 180 / π in 34 digits.
const RADIANS_PER_DEGREE: Decimal = Decimal::Finite(Finite {
    negative: false,
    coefficient: 1_745_329_251_994_329_576_923_690_768_488_613,
    exponent: -35,
});
const DEGREES_PER_RADIAN: Decimal = Decimal::Finite(Finite {
    negative: false,
    coefficient: 5_729_577_951_308_232_087_679_815_481_410_517,
    exponent: -32,
});

/// The text is the way out that the binding has; it says coefficient and exponent exactly.
fn from_library(value: BID128) -> Decimal {
    Decimal::parse(&value.to_string()).unwrap_or(Decimal::NaN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unary(name: &str) -> fn(Decimal) -> Decimal {
        match name {
            "exp" => Decimal::exp,
            "ln" => Decimal::ln,
            "log10" => Decimal::log10,
            "sin" => Decimal::sin,
            "cos" => Decimal::cos,
            "tan" => Decimal::tan,
            "asin" => Decimal::asin,
            "acos" => Decimal::acos,
            "atan" => Decimal::atan,
            "sinh" => Decimal::sinh,
            "cosh" => Decimal::cosh,
            "tanh" => Decimal::tanh,
            "asinh" => Decimal::asinh,
            "acosh" => Decimal::acosh,
            "atanh" => Decimal::atanh,
            "to_radians" => Decimal::to_radians,
            "to_degrees" => Decimal::to_degrees,
            _ => panic!("{name} is no function of one number"),
        }
    }

    #[test]
    fn agrees_with_mongodb() {
        let number = |text| Decimal::parse(text).unwrap();
        let lines = include_str!("functions.golden").lines();
        for line in lines.filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let (found, expected) = match words[..] {
                [name, argument, expected] => (unary(name)(number(argument)), expected),
                ["pow", base, exponent, expected] => (number(base).pow(number(exponent)), expected),
                ["atan2", y, x, expected] => (number(y).atan2(number(x)), expected),
                _ => panic!("{line} is no line"),
            };
            assert_eq!(found.to_string(), expected, "{line}");
        }
    }
}
