//! Braces that are no repetition.
//!
//! Newer versions of PCRE2 read `{,2}` and `{ 2 }` as repetitions, which to MongoDB are characters.

use std::borrow::Cow;

use super::linear::quantifier;

/// The pattern with such braces escaped.
pub(super) fn literal(source: &str) -> Cow<'_, str> {
    if !source.contains('{') {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len() + 8);
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\\' => escape(rest),
            '[' => class(rest),
            '{' if quantifier(rest[1..].chars()).is_none() => {
                out.push('\\');
                1
            }
            other => other.len_utf8(),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    Cow::Owned(out)
}

/// The length of an escape, with the braces that belong to it.
fn escape(text: &str) -> usize {
    if text.starts_with(r"\Q") {
        return text.find(r"\E").map_or(text.len(), |at| at + 2);
    }
    let Some(c) = text[1..].chars().next() else {
        return 1;
    };
    let length = 1 + c.len_utf8();
    match c {
        'x' | 'o' | 'p' | 'P' | 'g' | 'k' | 'N' if text[length..].starts_with('{') => {
            text.find('}').map_or(text.len(), |at| at + 1)
        }
        _ => length,
    }
}

/// The length of a class: up to the bracket that closes it, if one does.
fn class(text: &str) -> usize {
    let mut at = 1;
    for first in ["^", "]"] {
        if text[at..].starts_with(first) {
            at += 1;
        }
    }
    while let Some(c) = text[at..].chars().next() {
        at += match c {
            ']' => return at + 1,
            '\\' => escape(&text[at..]),
            // `[:alpha:]`
            '[' if text[at..].starts_with("[:") => {
                let inside = &text[at + 2..];
                match inside.find(|c: char| !c.is_ascii_alphabetic() && c != '^') {
                    Some(end) if inside[end..].starts_with(":]") => end + 4,
                    _ => 1,
                }
            }
            other => other.len_utf8(),
        };
    }
    at
}
