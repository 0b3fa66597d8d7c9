//! Numbers as bytes: equal values of all four types encode as equal, in exact order.
//!
//! NaN is the lowest; then come tags by sign and size of the integer part:
//!
//! | tag | value | payload |
//! | --- | --- | --- |
//! | `ZERO ± n`, n 1 to 7 | integer part below 2^55 | (integer part × 2 + f) in n bytes |
//! | `ZERO ± 8` | larger, up to infinity | none |
//! | `ZERO` | zero | none |
//!
//! Where f is set (there is a fraction) or the value is larger, eight bytes follow: the double
//! closest to the value on the side of zero. Then a byte: 0 if that double is the value, or 1 and
//! the value in decimal (only decimals and long integers get here): its exponent and 34 digits.
//! For negative numbers all payload is inverted.

use bson::RawBsonRef;

use super::types::{DECIMAL, DOUBLE, DOUBLE_BITS, LONG, NEGATIVE_ZERO, TypeSink};
use crate::decimal::{Decimal, Finite};
use crate::number::Number;

const NAN: u8 = 0x10;
const ZERO: u8 = 0x20;
const LARGE: u8 = 8;

pub const LOWEST: u8 = NAN;
pub const HIGHEST: u8 = ZERO + LARGE;

/// Integer parts below this fit seven bytes together with the flag.
const SMALL_LIMIT: u64 = 1 << 55;
const DIGITS_34: u128 = 10u128.pow(33);

pub fn encode(value: Number, out: &mut Vec<u8>) {
    match value {
        Number::Int32(v) => encode_integer(v < 0, u64::from(v.unsigned_abs()), out),
        Number::Int64(v) => encode_integer(v < 0, v.unsigned_abs(), out),
        Number::Double(v) if v.is_nan() => out.push(NAN),
        Number::Double(v) => encode_double(v, out),
        Number::Decimal(v) => encode_decimal(v, out),
    }
}

/// Tells of the type of a number, as far as its bytes do not.
pub(super) fn note_type(value: RawBsonRef<'_>, types: &mut impl TypeSink) {
    match value {
        RawBsonRef::Int64(v) => {
            let is_large = v.unsigned_abs() >= SMALL_LIMIT;
            match i32::try_from(v).is_ok() || is_large && truncate_u64(v.unsigned_abs()).1 {
                true => types.other(LONG, &[]),
                false => types.usual(),
            }
        }
        RawBsonRef::Double(v) if v.is_nan() => match v.to_bits() == f64::NAN.to_bits() {
            true => types.usual(),
            false => types.other(DOUBLE_BITS, &v.to_bits().to_be_bytes()),
        },
        RawBsonRef::Double(v) if v == 0.0 && v.is_sign_negative() => {
            types.other(NEGATIVE_ZERO, &[]);
        }
        RawBsonRef::Double(v) if v.trunc() == v && v.abs() < SMALL_LIMIT as f64 => {
            types.other(DOUBLE, &[]);
        }
        RawBsonRef::Decimal128(v) => types.other(DECIMAL, &v.bytes()),
        _ => types.usual(),
    }
}

/// What the bytes of a number say without its type.
pub(super) enum Decoded {
    /// A whole number below 2^55.
    Whole(i64),
    Double(f64),
    /// A whole number of 64 bits that is no double.
    Digits(i64),
    /// Only a decimal can be this.
    Decimal,
}

/// `take` hands out the next bytes, and what they are inverted with.
pub(super) fn decode<'k>(
    tag: u8,
    take: &mut impl FnMut(usize) -> Option<(&'k [u8], u8)>,
) -> Option<Decoded> {
    if tag == NAN {
        return Some(Decoded::Double(f64::NAN));
    }
    let negative = tag < ZERO;
    let length = usize::from(tag.abs_diff(ZERO));
    let invert = if negative { u8::MAX } else { 0 };
    let signed = |magnitude: f64| if negative { -magnitude } else { magnitude };
    if length < usize::from(LARGE) {
        let (bytes, flip) = take(length)?;
        let payload = bytes.iter().fold(0_u64, |payload, byte| {
            payload << 8 | u64::from(byte ^ flip ^ invert)
        });
        if payload & 1 == 0 {
            let whole = (payload >> 1) as i64;
            return Some(Decoded::Whole(if negative { -whole } else { whole }));
        }
    } else if length > usize::from(LARGE) {
        return None;
    }
    let (bytes, flip) = take(9)?;
    let (below, marker) = bytes.split_first_chunk::<8>()?;
    let below = f64::from_bits(u64::from_be_bytes(below.map(|byte| byte ^ flip ^ invert)));
    if marker.first()? ^ flip ^ invert == 0 {
        return Some(Decoded::Double(signed(below)));
    }
    let (bytes, flip) = take(18)?;
    let bytes = <&[u8; 18]>::try_from(bytes).ok()?;
    let bytes = bytes.map(|byte| byte ^ flip ^ invert);
    let (exponent, coefficient) = bytes.split_first_chunk::<2>()?;
    let exponent = i32::from(u16::from_be_bytes(*exponent)) - 0x8000;
    let coefficient = u128::from_be_bytes(*coefficient.first_chunk()?);
    let whole = match u32::try_from(-exponent)
        .ok()
        .and_then(|e| 10_u128.checked_pow(e))
    {
        Some(power) if coefficient.is_multiple_of(power) => coefficient / power,
        _ => return Some(Decoded::Decimal),
    };
    Some(match i64::try_from(whole) {
        Ok(whole) => Decoded::Digits(if negative { -whole } else { whole }),
        Err(_) => Decoded::Decimal,
    })
}

fn encode_integer(negative: bool, magnitude: u64, out: &mut Vec<u8>) {
    if magnitude < SMALL_LIMIT {
        return encode_small(negative, magnitude, false, out);
    }
    let (below, exact) = truncate_u64(magnitude);
    let decimal = (!exact).then(|| (u128::from(magnitude), 0));
    encode_large(negative, below, decimal, out);
}

fn encode_double(value: f64, out: &mut Vec<u8>) {
    let (negative, magnitude) = (value < 0.0, value.abs());
    if magnitude >= SMALL_LIMIT as f64 {
        return encode_large(negative, magnitude, None, out);
    }
    let whole = magnitude.trunc();
    let fraction = whole != magnitude;
    encode_small(negative, whole as u64, fraction, out);
    if fraction {
        encode_rest(negative, magnitude, None, out);
    }
}

fn encode_decimal(value: Decimal, out: &mut Vec<u8>) {
    let finite = match value {
        Decimal::NaN => return out.push(NAN),
        Decimal::Infinity { negative } => return encode_large(negative, f64::INFINITY, None, out),
        Decimal::Finite(finite) => finite,
    };
    if let Some(integer) = value.to_i64_exact() {
        return encode_integer(integer < 0, integer.unsigned_abs(), out);
    }
    let (below, exact) = truncate_decimal(finite);
    let decimal = (!exact).then_some((finite.coefficient, finite.exponent));
    if below >= SMALL_LIMIT as f64 {
        return encode_large(finite.negative, below, decimal, out);
    }
    // Not an integer of 64 bits and below 2^55: there is a fraction. The double below has the same
    // integer part, for integers of this size are doubles or (above 2^53) are computed exactly.
    let whole = integer_part(finite);
    encode_small(finite.negative, whole, true, out);
    encode_rest(finite.negative, below, decimal, out);
}

fn encode_small(negative: bool, whole: u64, fraction: bool, out: &mut Vec<u8>) {
    let payload = whole << 1 | u64::from(fraction);
    let length = 8 - (payload.leading_zeros() / 8) as u8;
    out.push(if negative {
        ZERO - length
    } else {
        ZERO + length
    });
    let payload = if negative { !payload } else { payload };
    out.extend_from_slice(&payload.to_be_bytes()[8 - usize::from(length)..]);
}

fn encode_large(negative: bool, below: f64, decimal: Option<(u128, i32)>, out: &mut Vec<u8>) {
    out.push(if negative { ZERO - LARGE } else { ZERO + LARGE });
    encode_rest(negative, below, decimal, out);
}

fn encode_rest(negative: bool, below: f64, decimal: Option<(u128, i32)>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&below.to_bits().to_be_bytes());
    match decimal {
        None => out.push(0),
        Some((coefficient, exponent)) => {
            out.push(1);
            let (mut coefficient, mut exponent) = (coefficient, exponent);
            while coefficient != 0 && coefficient < DIGITS_34 {
                coefficient *= 10;
                exponent -= 1;
            }
            // Exponents lie within ±6300, so that adding 2^15 makes them positive.
            out.extend_from_slice(&((exponent + 0x8000) as u16).to_be_bytes());
            out.extend_from_slice(&coefficient.to_be_bytes());
        }
    }
    if negative {
        for byte in &mut out[start..] {
            *byte = !*byte;
        }
    }
}

/// The largest double that is not above `value`, and whether it is the value.
fn truncate_u64(value: u64) -> (f64, bool) {
    let spare = 64u32.saturating_sub(53 + value.leading_zeros());
    let kept = (value >> spare) << spare;
    (kept as f64, kept == value)
}

/// The same for the magnitude of a decimal.
fn truncate_decimal(value: Finite) -> (f64, bool) {
    let magnitude = Decimal::Finite(Finite {
        negative: false,
        ..value
    });
    let near = magnitude.to_f64();
    let near = if near.is_infinite() { f64::MAX } else { near };
    match magnitude.compare_f64(near) {
        std::cmp::Ordering::Equal => (near, true),
        std::cmp::Ordering::Greater => (near, false),
        std::cmp::Ordering::Less => {
            let below = near.next_down().max(0.0);
            // Rounding moves by half a step at most, so the step below is not above.
            (
                below,
                magnitude.compare_f64(below) == std::cmp::Ordering::Equal,
            )
        }
    }
}

/// The integer part of a magnitude that is known to be below 2^55.
fn integer_part(value: Finite) -> u64 {
    let power = value.exponent.unsigned_abs();
    let whole = if value.exponent >= 0 {
        10u128
            .checked_pow(power)
            .and_then(|p| value.coefficient.checked_mul(p))
    } else {
        Some(
            10u128
                .checked_pow(power)
                .map_or(0, |p| value.coefficient / p),
        )
    };
    whole
        .and_then(|whole| u64::try_from(whole).ok())
        .unwrap_or(0)
}
