//! `$bitsAllSet` and its family.

use banyan_document::number::{Number, Rounding};
use bson::RawBsonRef;

use crate::binary;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitTest {
    AllSet,
    AllClear,
    AnySet,
    AnyClear,
}

/// Bits of an integer (in two's complement, the sign going on for ever) or of binary data (lowest
/// bit of the first byte first, zeros going on for ever).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    pub test: BitTest,
    pub positions: Vec<u32>,
}

impl Bits {
    pub fn holds(&self, value: RawBsonRef<'_>) -> bool {
        match value {
            RawBsonRef::Binary(binary) => self.check(|at| {
                let byte = binary::byte(binary, at as usize / 8);
                byte.is_some_and(|byte| byte >> (at % 8) & 1 == 1)
            }),
            _ => integer(value).is_some_and(|v| self.check(|at| v >> at.min(63) & 1 == 1)),
        }
    }

    fn check(&self, is_set: impl Fn(u32) -> bool) -> bool {
        let mut positions = self.positions.iter().copied();
        match self.test {
            BitTest::AllSet => positions.all(is_set),
            BitTest::AllClear => !positions.any(is_set),
            BitTest::AnySet => positions.any(is_set),
            BitTest::AnyClear => !positions.all(is_set),
        }
    }
}

/// Doubles count if they are integers. Decimals are rounded; those that are no number or too large
/// are the smallest integer, as in MongoDB.
fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    match Number::from_raw(value)? {
        Number::Decimal(v) => {
            let rounded = v.round_to(0, Rounding::HalfEven);
            Some(rounded.to_i64_exact().unwrap_or(i64::MIN))
        }
        other => other.to_i64_exact(),
    }
}
