//! A walk over the elements of raw BSON that hands out bytes and checks bounds, nothing more.
//!
//! `bson`'s iterator checks names and strings for UTF-8 on the way; here most elements are
//! stepped over, and V8 replaces what is not UTF-8 in those that are not.

/// The bytes end early, or a type byte is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

#[derive(Debug, Clone, Copy)]
pub struct Element<'a> {
    /// BSON's type byte.
    pub kind: u8,
    pub name: &'a [u8],
    pub value: &'a [u8],
}

pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    /// `document` includes its length and its final zero.
    pub fn new(document: &'a [u8]) -> Result<Self, Malformed> {
        let length = read_i32(document)? as usize;
        if length < 5 || length > document.len() {
            return Err(Malformed);
        }
        Ok(Elements {
            rest: &document[4..length - 1],
        })
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, rest) = self.rest.split_first()?;
        let step = || -> Result<(Element<'a>, &'a [u8]), Malformed> {
            let name_bytes = rest.iter().position(|b| *b == 0).ok_or(Malformed)?;
            let (name, after) = rest.split_at(name_bytes);
            let after = &after[1..];
            let value_bytes = value_bytes(kind, after)?;
            if value_bytes > after.len() {
                return Err(Malformed);
            }
            let (value, next) = after.split_at(value_bytes);
            Ok((Element { kind, name, value }, next))
        };
        match step() {
            Ok((element, next)) => {
                self.rest = next;
                Some(Ok(element))
            }
            Err(malformed) => {
                self.rest = &[];
                Some(Err(malformed))
            }
        }
    }
}

pub fn read_i32(bytes: &[u8]) -> Result<i32, Malformed> {
    let four = bytes
        .get(..4)
        .and_then(|b| b.try_into().ok())
        .ok_or(Malformed)?;
    Ok(i32::from_le_bytes(four))
}

pub fn read_u32(bytes: &[u8]) -> Result<u32, Malformed> {
    read_i32(bytes).map(|n| n as u32)
}

pub fn read_i64(bytes: &[u8]) -> Result<i64, Malformed> {
    let eight = bytes
        .get(..8)
        .and_then(|b| b.try_into().ok())
        .ok_or(Malformed)?;
    Ok(i64::from_le_bytes(eight))
}

/// The text of a string value: its length and its final zero removed.
pub fn text(value: &[u8]) -> Result<&[u8], Malformed> {
    let length = read_i32(value)?;
    let end = 4usize.checked_add(usize::try_from(length).map_err(|_| Malformed)?);
    let bytes = end.and_then(|end| value.get(4..end)).ok_or(Malformed)?;
    bytes.split_last().map(|(_, text)| text).ok_or(Malformed)
}

/// The bytes up to the first zero, and what follows it.
pub fn until_zero(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes.iter().position(|b| *b == 0).ok_or(Malformed)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

#[inline]
fn value_bytes(kind: u8, bytes: &[u8]) -> Result<usize, Malformed> {
    let counted = |extra: usize| -> Result<usize, Malformed> {
        let length = usize::try_from(read_i32(bytes)?).map_err(|_| Malformed)?;
        length.checked_add(extra).ok_or(Malformed)
    };
    match kind {
        0x01 | 0x09 | 0x11 | 0x12 => Ok(8),
        0x02 | 0x0d | 0x0e => counted(4),
        0x03 | 0x04 | 0x0f => counted(0).and_then(|n| if n < 5 { Err(Malformed) } else { Ok(n) }),
        0x05 => counted(5),
        0x06 | 0x0a | 0xff | 0x7f => Ok(0),
        0x07 => Ok(12),
        0x08 => Ok(1),
        0x0b => {
            let (pattern, rest) = until_zero(bytes)?;
            let (options, _) = until_zero(rest)?;
            Ok(pattern.len() + options.len() + 2)
        }
        0x0c => counted(4 + 12),
        0x10 => Ok(4),
        0x13 => Ok(16),
        _ => Err(Malformed),
    }
}
