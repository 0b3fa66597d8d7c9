//! The series of preferred numbers that the boundaries of $bucketAuto are rounded to.

use bson::{RawBson, RawBsonRef};

use banyan_document::Number;
use banyan_document::number::{Decimal, Rounding};

use crate::error::QueryError;
use crate::expression::value::{Value, error, type_name};

#[derive(Clone, Copy, Debug)]
pub(super) enum Granularity {
    /// The numbers of one decade; those of the others are theirs times powers of ten.
    Series(&'static [f64]),
    PowersOfTwo,
}

const R5: &[f64] = &[10.0, 16.0, 25.0, 40.0, 63.0];
const R10: &[f64] = &[
    100.0, 125.0, 160.0, 200.0, 250.0, 315.0, 400.0, 500.0, 630.0, 800.0,
];
const R20: &[f64] = &[
    100.0, 112.0, 125.0, 140.0, 160.0, 180.0, 200.0, 224.0, 250.0, 280.0, 315.0, 355.0, 400.0,
    450.0, 500.0, 560.0, 630.0, 710.0, 800.0, 900.0,
];
const R40: &[f64] = &[
    100.0, 106.0, 112.0, 118.0, 125.0, 132.0, 140.0, 150.0, 160.0, 170.0, 180.0, 190.0, 200.0,
    212.0, 224.0, 236.0, 250.0, 265.0, 280.0, 300.0, 315.0, 355.0, 375.0, 400.0, 425.0, 450.0,
    475.0, 500.0, 530.0, 560.0, 600.0, 630.0, 670.0, 710.0, 750.0, 800.0, 850.0, 900.0, 950.0,
];
const R80: &[f64] = &[
    103.0, 109.0, 115.0, 122.0, 128.0, 136.0, 145.0, 155.0, 165.0, 175.0, 185.0, 195.0, 206.0,
    218.0, 230.0, 243.0, 258.0, 272.0, 290.0, 307.0, 325.0, 345.0, 365.0, 387.0, 412.0, 437.0,
    462.0, 487.0, 515.0, 545.0, 575.0, 615.0, 650.0, 690.0, 730.0, 775.0, 825.0, 875.0, 925.0,
    975.0,
];
const ONE_TWO_FIVE: &[f64] = &[10.0, 20.0, 50.0];
const E6: &[f64] = &[10.0, 15.0, 22.0, 33.0, 47.0, 68.0];
const E12: &[f64] = &[
    10.0, 12.0, 15.0, 18.0, 22.0, 27.0, 33.0, 39.0, 47.0, 56.0, 68.0, 82.0,
];
const E24: &[f64] = &[
    10.0, 11.0, 12.0, 13.0, 15.0, 16.0, 18.0, 20.0, 22.0, 24.0, 27.0, 30.0, 33.0, 36.0, 39.0, 43.0,
    47.0, 51.0, 56.0, 62.0, 68.0, 75.0, 82.0, 91.0,
];
const E48: &[f64] = &[
    100.0, 105.0, 110.0, 115.0, 121.0, 127.0, 133.0, 140.0, 147.0, 154.0, 162.0, 169.0, 178.0,
    187.0, 196.0, 205.0, 215.0, 226.0, 237.0, 249.0, 261.0, 274.0, 287.0, 301.0, 316.0, 332.0,
    348.0, 365.0, 383.0, 402.0, 422.0, 442.0, 464.0, 487.0, 511.0, 536.0, 562.0, 590.0, 619.0,
    649.0, 681.0, 715.0, 750.0, 787.0, 825.0, 866.0, 909.0, 953.0,
];
const E96: &[f64] = &[
    100.0, 102.0, 105.0, 107.0, 110.0, 113.0, 115.0, 118.0, 121.0, 124.0, 127.0, 130.0, 133.0,
    137.0, 140.0, 143.0, 147.0, 150.0, 154.0, 158.0, 162.0, 165.0, 169.0, 174.0, 178.0, 182.0,
    187.0, 191.0, 196.0, 200.0, 205.0, 210.0, 215.0, 221.0, 226.0, 232.0, 237.0, 243.0, 249.0,
    255.0, 261.0, 267.0, 274.0, 280.0, 287.0, 294.0, 301.0, 309.0, 316.0, 324.0, 332.0, 340.0,
    348.0, 357.0, 365.0, 374.0, 383.0, 392.0, 402.0, 412.0, 422.0, 432.0, 442.0, 453.0, 464.0,
    475.0, 487.0, 499.0, 511.0, 523.0, 536.0, 549.0, 562.0, 576.0, 590.0, 604.0, 619.0, 634.0,
    649.0, 665.0, 681.0, 698.0, 715.0, 732.0, 750.0, 768.0, 787.0, 806.0, 825.0, 845.0, 866.0,
    887.0, 909.0, 931.0, 953.0, 976.0,
];
const E192: &[f64] = &[
    100.0, 101.0, 102.0, 104.0, 105.0, 106.0, 107.0, 109.0, 110.0, 111.0, 113.0, 114.0, 115.0,
    117.0, 118.0, 120.0, 121.0, 123.0, 124.0, 126.0, 127.0, 129.0, 130.0, 132.0, 133.0, 135.0,
    137.0, 138.0, 140.0, 142.0, 143.0, 145.0, 147.0, 149.0, 150.0, 152.0, 154.0, 156.0, 158.0,
    160.0, 162.0, 164.0, 165.0, 167.0, 169.0, 172.0, 174.0, 176.0, 178.0, 180.0, 182.0, 184.0,
    187.0, 189.0, 191.0, 193.0, 196.0, 198.0, 200.0, 203.0, 205.0, 208.0, 210.0, 213.0, 215.0,
    218.0, 221.0, 223.0, 226.0, 229.0, 232.0, 234.0, 237.0, 240.0, 243.0, 246.0, 249.0, 252.0,
    255.0, 258.0, 261.0, 264.0, 267.0, 271.0, 274.0, 277.0, 280.0, 284.0, 287.0, 291.0, 294.0,
    298.0, 301.0, 305.0, 309.0, 312.0, 316.0, 320.0, 324.0, 328.0, 332.0, 336.0, 340.0, 344.0,
    348.0, 352.0, 357.0, 361.0, 365.0, 370.0, 374.0, 379.0, 383.0, 388.0, 392.0, 397.0, 402.0,
    407.0, 412.0, 417.0, 422.0, 427.0, 432.0, 437.0, 442.0, 448.0, 453.0, 459.0, 464.0, 470.0,
    475.0, 481.0, 487.0, 493.0, 499.0, 505.0, 511.0, 517.0, 523.0, 530.0, 536.0, 542.0, 549.0,
    556.0, 562.0, 569.0, 576.0, 583.0, 590.0, 597.0, 604.0, 612.0, 619.0, 626.0, 634.0, 642.0,
    649.0, 657.0, 665.0, 673.0, 681.0, 690.0, 698.0, 706.0, 715.0, 723.0, 732.0, 741.0, 750.0,
    759.0, 768.0, 777.0, 787.0, 796.0, 806.0, 816.0, 825.0, 835.0, 845.0, 856.0, 866.0, 876.0,
    887.0, 898.0, 909.0, 920.0, 931.0, 942.0, 953.0, 965.0, 976.0, 988.0,
];

impl Granularity {
    pub fn parse(name: &str) -> Result<Granularity, QueryError> {
        Ok(match name {
            "R5" => Granularity::Series(R5),
            "R10" => Granularity::Series(R10),
            "R20" => Granularity::Series(R20),
            "R40" => Granularity::Series(R40),
            "R80" => Granularity::Series(R80),
            "1-2-5" => Granularity::Series(ONE_TWO_FIVE),
            "E6" => Granularity::Series(E6),
            "E12" => Granularity::Series(E12),
            "E24" => Granularity::Series(E24),
            "E48" => Granularity::Series(E48),
            "E96" => Granularity::Series(E96),
            "E192" => Granularity::Series(E192),
            "POWERSOF2" => Granularity::PowersOfTwo,
            other => return error(40257, format!("Unknown rounding granularity '{other}'")),
        })
    }

    /// Refuses what cannot be rounded.
    pub fn check(&self, value: Value<'_>) -> Result<(), QueryError> {
        let prefix = "$bucketAuto can specify a 'granularity' with";
        let Some(number) = value.and_then(Number::from_raw) else {
            let found = type_name(value);
            return error(
                40258,
                format!("{prefix} numeric boundaries only, but found a value with type: {found}"),
            );
        };
        if number.is_nan() {
            return error(
                40259,
                format!("{prefix} numeric boundaries only, but found a NaN"),
            );
        }
        if number.compare(Number::Int32(0)).is_lt() {
            return error(
                40260,
                format!("{prefix} non-negative numbers only, but found a negative number"),
            );
        }
        Ok(())
    }

    /// The next greater number of the series.
    pub fn up(&self, value: RawBsonRef<'_>) -> RawBson {
        self.round(value, true)
    }

    /// The next smaller number of the series.
    pub fn down(&self, value: RawBsonRef<'_>) -> RawBson {
        self.round(value, false)
    }

    fn round(&self, value: RawBsonRef<'_>, up: bool) -> RawBson {
        let Some(number) = Number::from_raw(value) else {
            return value.into();
        };
        if number.is_zero() || number.is_infinite() {
            return value.into();
        }
        let rounded = match self {
            Granularity::Series(series) => Decade::of(series, number).round(number, up),
            Granularity::PowersOfTwo => power_of_two(number, up),
        };
        rounded.to_raw().into()
    }
}

/// The next power: a decimal of a decimal, otherwise a whole number where it is one that fits.
fn power_of_two(number: Number, up: bool) -> Number {
    let exponent = match number {
        Number::Decimal(number) => return Number::Decimal(decimal_power_of_two(number, up)),
        Number::Int32(_) | Number::Int64(_) => {
            let whole = number.to_i64_saturating();
            // How many bits it takes; of a power itself those of what lies below it.
            let bits = |whole: i64| f64::from(i64::BITS - whole.leading_zeros());
            match up {
                true => bits(whole),
                false => bits(whole - 1) - 1.0,
            }
        }
        Number::Double(number) => match up {
            true => number.log2().floor() + 1.0,
            false => number.log2().ceil() - 1.0,
        },
    };
    let power = exponent.exp2();
    match (0.0..63.0).contains(&exponent) {
        true => Number::narrow(power as i64),
        false => Number::Double(power),
    }
}

fn decimal_power_of_two(number: Decimal, up: bool) -> Decimal {
    let (rounding, step) = match up {
        true => (Rounding::Floor, 1),
        false => (Rounding::Ceiling, -1),
    };
    let whole = number.log2().round_to(0, rounding);
    Decimal::from_i64(2).pow(whole.add(Decimal::from_i64(step)))
}

/// The numbers of a series in the type in which they are counted.
struct Decade {
    series: Vec<Number>,
    one: Number,
    ten: Number,
}

impl Decade {
    fn of(series: &[f64], number: Number) -> Decade {
        let of = |value: f64| match number {
            Number::Decimal(_) => Number::Decimal(Number::Double(value).to_decimal()),
            _ => Number::Double(value),
        };
        let factor = |value: i32| match number {
            Number::Decimal(_) => Number::Decimal(Number::Int32(value).to_decimal()),
            _ => Number::Double(f64::from(value)),
        };
        Decade {
            series: series.iter().map(|value| of(*value)).collect(),
            one: factor(1),
            ten: factor(10),
        }
    }

    /// Looks for the decade of the number, step by step, as the reference does: the factors'
    /// rounding errors show.
    fn round(&self, number: Number, up: bool) -> Number {
        let (Some(first), Some(last)) = (self.series.first(), self.series.last()) else {
            return number;
        };
        // Whether the number lies at or past the greatest of a decade, before the least of it.
        let past = |value: Number| number.compare(value).is_gt() || (up && is_equal(number, value));
        let before =
            |value: Number| number.compare(value).is_lt() || (!up && is_equal(number, value));
        let mut factor = self.one;
        let mut outer = None;
        while past(last.multiply(factor)) {
            outer = Some(last.multiply(factor));
            factor = factor.multiply(self.ten);
        }
        if before(first.multiply(factor))
            && !up
            && let Some(outer) = outer
        {
            return outer;
        }
        while before(first.multiply(factor)) {
            let above = first.multiply(factor);
            factor = factor.divide(self.ten).unwrap_or(factor);
            if past(last.multiply(factor)) {
                return if up { above } else { last.multiply(factor) };
            }
        }
        let mut numbers = self.series.iter().map(|value| value.multiply(factor));
        let found = match up {
            true => numbers.find(|value| value.compare(number).is_gt()),
            false => numbers.rfind(|value| value.compare(number).is_lt()),
        };
        found.unwrap_or(number)
    }
}

fn is_equal(a: Number, b: Number) -> bool {
    a.compare(b).is_eq()
}
