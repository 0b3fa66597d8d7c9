//! Resume tokens.
//!
//! ```text
//! 82 | time u64 | version u8 | kind u8 | UUID of the collection 16, if it is about one | fragment u32, if
//! the event was split
//! ```
//!
//! Big-endian and in hexadecimal, so tokens of one stream sort as their events follow each other.
//! Times are unique to an operation, so nothing else is needed to find the place again, on any
//! member; the UUID tells a token that belongs to another deployment or collection.

use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, rawdoc};

/// As MongoDB's tokens start: drivers' users look at them.
const START: u8 = 0x82;
const VERSION: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Everything up to this time, itself included, has been seen.
    HighWater = 0x40,
    /// The event of the operation at this time was the last that was seen.
    Event = 0x6e,
    /// As `Event`, and the end of the stream that came of it.
    Invalidate = 0x6f,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// As [`crate::clock::to_bits`].
    pub time: u64,
    pub kind: Kind,
    pub uuid: Option<[u8; 16]>,
    /// Up to which fragment a split event was seen, counted from 1.
    pub fragment: Option<u32>,
}

impl Token {
    pub fn high_water(time: u64) -> Token {
        Token {
            time,
            kind: Kind::HighWater,
            uuid: None,
            fragment: None,
        }
    }

    pub fn event(time: u64, uuid: Option<[u8; 16]>) -> Token {
        Token {
            time,
            kind: Kind::Event,
            uuid,
            fragment: None,
        }
    }

    /// Of a fragment of this event, which is about a collection.
    pub fn fragment(self, fragment: u32) -> Token {
        Token {
            fragment: Some(fragment),
            ..self
        }
    }

    /// Of the event, whichever fragment of it is named.
    pub fn whole(self) -> Token {
        Token {
            fragment: None,
            ..self
        }
    }

    /// Of the end that came of this event.
    pub fn invalidate(self) -> Token {
        Token {
            kind: Kind::Invalidate,
            ..self
        }
    }

    pub fn to_text(self) -> String {
        let mut bytes = Vec::with_capacity(31);
        bytes.push(START);
        bytes.extend_from_slice(&self.time.to_be_bytes());
        bytes.extend_from_slice(&[VERSION, self.kind as u8]);
        bytes.extend(self.uuid.into_iter().flatten());
        bytes.extend(self.fragment.into_iter().flat_map(u32::to_be_bytes));
        bytes.iter().map(|byte| format!("{byte:02X}")).collect()
    }

    /// `{_data: …}`.
    pub fn to_document(self) -> RawDocumentBuf {
        rawdoc! { "_data": self.to_text() }
    }

    pub fn parse(text: &str) -> Result<Token, CommandError> {
        if text.is_empty() {
            let empty = ErrorCode::Location(40649);
            return Err(CommandError::new(empty, "invalid empty resume token"));
        }
        let Some(bytes) = from_hex(text) else {
            return Err(CommandError::new(
                ErrorCode::FailedToParse,
                "resume token string was not a valid hex string",
            ));
        };
        read(&bytes).ok_or_else(|| {
            CommandError::new(
                ErrorCode::InvalidResumeToken,
                "the resume token is not one of this server's",
            )
        })
    }
}

fn read(bytes: &[u8]) -> Option<Token> {
    let (start, rest) = bytes.split_first()?;
    let (time, rest) = rest.split_first_chunk()?;
    let ([version, kind], rest) = rest.split_first_chunk()?;
    if (*start, *version) != (START, VERSION) {
        return None;
    }
    let kinds = [Kind::HighWater, Kind::Event, Kind::Invalidate];
    let kind = kinds.into_iter().find(|known| *known as u8 == *kind)?;
    let (uuid, fragment) = match rest.split_first_chunk() {
        Some((uuid, fragment)) => (Some(*uuid), fragment),
        None if rest.is_empty() => (None, rest),
        None => return None,
    };
    let fragment = match fragment {
        [] => None,
        bytes if kind == Kind::Event => Some(u32::from_be_bytes(bytes.try_into().ok()?)),
        _ => return None,
    };
    Some(Token {
        time: u64::from_be_bytes(*time),
        kind,
        uuid,
        fragment,
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.as_bytes()
        .chunks(2)
        .map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_read_back_and_sort_as_their_events() {
        let event = Token::event(5 << 32 | 7, Some([9; 16]));
        let in_order = [
            Token::high_water(3),
            Token::event(4, None),
            event,
            event.fragment(1),
            event.fragment(2),
            event.invalidate(),
            Token::high_water(5 << 32 | 8),
            Token::event(u64::MAX, Some([0; 16])),
        ];
        let texts: Vec<_> = in_order.iter().map(|token| token.to_text()).collect();
        assert!(texts.is_sorted());
        for (token, text) in in_order.into_iter().zip(&texts) {
            assert_eq!(Token::parse(text).unwrap(), token);
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let code = |text: &str| Token::parse(text).unwrap_err().code.code();
        assert_eq!(code("zz"), 9);
        assert_eq!(code(""), 40649);
        assert_eq!(code("826"), 9);
        assert_eq!(code("826B"), 260);
        // One of MongoDB's own.
        assert_eq!(code("826B0132CB000000012B022C0100296E04"), 260);
        let cut = Token::event(1, Some([1; 16])).to_text();
        assert_eq!(code(&cut[..cut.len() - 2]), 260);
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_or_an_error(text in "[0-9A-Fa-fg]{0,60}") {
            if let Ok(token) = Token::parse(&text) {
                prop_assert_eq!(token.to_text(), text.to_uppercase());
            }
        }
    }
}
