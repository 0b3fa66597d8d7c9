//! Regular expressions in PCRE's syntax on Rust's engines.
//!
//! The linear-time engine runs what it can; look-around and back references go to the
//! backtracking one, which gives up (no match) after a bounded number of steps. Where the syntaxes
//! differ, the pattern is translated: ASCII-only `\d \w \s`, literal braces, `\Q…\E`, `$` before a
//! last newline.

use std::fmt::Write;
use std::ops::Range;

use crate::error::{ErrorKind, QueryError};

/// A compiled regular expression and what it was compiled from.
#[derive(Clone, Debug)]
pub struct Pattern {
    source: Box<str>,
    options: Box<str>,
    engine: Engine,
}

#[derive(Clone, Debug)]
enum Engine {
    Linear(regex::Regex),
    Backtracking(Box<fancy_regex::Regex>),
}

/// Options that MongoDB takes; `u` is always on.
const OPTIONS: &str = "imsux";

impl Pattern {
    pub fn compile(source: &str, options: &str) -> Result<Pattern, QueryError> {
        if let Some(unknown) = options.chars().find(|c| !OPTIONS.contains(*c)) {
            let message = format!(" invalid flag in regex options: {unknown}");
            return Err(QueryError::new(ErrorKind::Location(51108), message));
        }
        if source.contains('\0') {
            let message = "Regular expression cannot contain an embedded null byte";
            return Err(QueryError::new(ErrorKind::BadValue, message));
        }
        let translated = translate(source, options);
        let linear = regex::RegexBuilder::new(&translated)
            .case_insensitive(options.contains('i'))
            .multi_line(options.contains('m'))
            .dot_matches_new_line(options.contains('s'))
            .ignore_whitespace(options.contains('x'))
            .build();
        let engine = match linear {
            Ok(engine) => Engine::Linear(engine),
            Err(_) => {
                let flags: String = options.chars().filter(|c| *c != 'u').collect();
                let flagged = if flags.is_empty() {
                    translated
                } else {
                    format!("(?{flags}){translated}")
                };
                let engine = fancy_regex::Regex::new(&flagged).map_err(|error| {
                    // The usual mistake, in the reference's words.
                    let text = error.to_string();
                    let open = text.contains("without closing parenthesis");
                    let reason = if open { "missing )".into() } else { text };
                    let message = format!("Regular expression is invalid: {reason}");
                    QueryError::new(ErrorKind::Location(51091), message)
                })?;
                Engine::Backtracking(Box::new(engine))
            }
        };
        Ok(Pattern {
            source: source.into(),
            options: options.into(),
            engine,
        })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn options(&self) -> &str {
        &self.options
    }

    pub fn is_match(&self, text: &str) -> bool {
        match &self.engine {
            Engine::Linear(engine) => engine.is_match(text),
            Engine::Backtracking(engine) => engine.is_match(text).unwrap_or(false),
        }
    }

    /// The first match at or after byte `start`: its range, and those of its groups.
    pub(crate) fn captures(&self, text: &str, start: usize) -> Option<Vec<Option<Range<usize>>>> {
        match &self.engine {
            Engine::Linear(engine) => {
                let found = engine.captures_at(text, start)?;
                Some(found.iter().map(|group| group.map(|m| m.range())).collect())
            }
            Engine::Backtracking(engine) => {
                let found = engine.captures_from_pos(text, start).ok()??;
                Some(found.iter().map(|group| group.map(|m| m.range())).collect())
            }
        }
    }

    /// The text that every match starts with, if the pattern is anchored at the start, and whether
    /// starting with it is all there is to match.
    pub fn prefix(&self) -> Option<(String, bool)> {
        let anchored = self
            .source
            .strip_prefix('^')
            .or_else(|| self.source.strip_prefix("\\A"))?;
        if self.options.contains(['i', 'm', 'x']) {
            return None;
        }
        let mut prefix = String::new();
        let mut chars = anchored.chars().peekable();
        let mut complete = true;
        while let Some(c) = chars.next() {
            let literal = match c {
                '\\' => match chars.peek() {
                    Some(next) if !next.is_alphanumeric() => chars.next(),
                    _ => None,
                },
                '.' | '[' | '(' | '$' | '^' | '*' | '+' | '?' | '{' => None,
                // An alternative may start with anything.
                '|' => return None,
                other => Some(other),
            };
            match (literal, chars.peek()) {
                // What follows may make the character optional.
                (Some(_), Some('*' | '?' | '{')) | (None, _) => {
                    complete = false;
                    break;
                }
                (Some(literal), next) => {
                    prefix.push(literal);
                    if next == Some(&'+') {
                        complete = false;
                        break;
                    }
                }
            }
        }
        if anchored.contains('|') || prefix.is_empty() {
            return None;
        }
        Some((prefix, complete))
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.source == other.source && self.options == other.options
    }
}

fn translate(source: &str, options: &str) -> String {
    let mut translator = Translator {
        rest: source,
        out: String::with_capacity(source.len() + 16),
        in_class: false,
        lines: options.contains('m') || sets_lines(source),
    };
    while translator.step() {}
    translator.out
}

/// Whether an inline group such as `(?im)` turns on line mode.
fn sets_lines(source: &str) -> bool {
    source.split("(?").skip(1).any(|group| {
        group
            .chars()
            .take_while(char::is_ascii_alphabetic)
            .any(|flag| flag == 'm')
    })
}

struct Translator<'a> {
    rest: &'a str,
    out: String,
    in_class: bool,
    lines: bool,
}

impl Translator<'_> {
    fn step(&mut self) -> bool {
        let mut chars = self.rest.chars();
        let Some(c) = chars.next() else {
            return false;
        };
        self.rest = chars.as_str();
        match c {
            '\\' => self.escape(),
            _ if self.in_class => self.class_char(c),
            '[' => self.open_class(),
            '$' if !self.lines => self.out.push_str(r"(?:\n?\z)"),
            '{' if !is_quantifier(self.rest) => self.out.push_str(r"\{"),
            '{' => self.quantifier(),
            '}' => self.out.push_str(r"\}"),
            other => self.out.push(other),
        }
        true
    }

    fn quantifier(&mut self) {
        if let Some((count, rest)) = self.rest.split_once('}') {
            let _ = write!(self.out, "{{{count}}}");
            self.rest = rest;
        }
    }

    fn open_class(&mut self) {
        self.out.push('[');
        self.in_class = true;
        for first in ["^", "]"] {
            if let Some(rest) = self.rest.strip_prefix(first) {
                self.out.push_str(if first == "]" { r"\]" } else { first });
                self.rest = rest;
            }
        }
    }

    fn class_char(&mut self, c: char) {
        match c {
            ']' => {
                self.in_class = false;
                self.out.push(']');
            }
            '[' => match self.rest.strip_prefix(':').and_then(|r| r.split_once(":]")) {
                Some((name, rest)) => {
                    let _ = write!(self.out, "[:{name}:]");
                    self.rest = rest;
                }
                None => self.out.push_str(r"\["),
            },
            // Doubled, these are set operations to the engine.
            '&' | '~' => {
                self.out.push('\\');
                self.out.push(c);
            }
            '-' if self.rest.starts_with('-') => self.out.push_str(r"\-"),
            other => self.out.push(other),
        }
    }

    fn escape(&mut self) {
        let mut chars = self.rest.chars();
        let Some(c) = chars.next() else {
            self.out.push('\\');
            return;
        };
        self.rest = chars.as_str();
        match c {
            'd' => self.out.push_str("[0-9]"),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str("[0-9A-Za-z_]"),
            'W' => self.out.push_str("[^0-9A-Za-z_]"),
            's' => self.out.push_str(r"[\t\n\x0B\x0C\r\x20]"),
            'S' => self.out.push_str(r"[^\t\n\x0B\x0C\r\x20]"),
            'h' => self.out.push_str(r"[\t\x20]"),
            'R' => self.out.push_str(r"(?:\r\n|\n|\r)"),
            'Z' => self.out.push_str(r"(?:\n?\z)"),
            'b' if self.in_class => self.out.push_str(r"\x08"),
            'b' => self.out.push_str(r"(?-u:\b)"),
            'e' => self.out.push_str(r"\x1B"),
            '0' => self.out.push_str(r"\x00"),
            'Q' => self.quoted(),
            'E' => {}
            ' ' => self.out.push_str(r"\x20"),
            c if c.is_alphanumeric() || c.is_ascii_punctuation() => {
                if c.is_ascii() {
                    self.out.push('\\');
                }
                self.out.push(c);
            }
            other => self.out.push(other),
        }
    }

    fn quoted(&mut self) {
        let (text, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
        self.out.push_str(&regex::escape(text));
        self.rest = rest;
    }
}

/// Whether what follows a brace makes it a repetition: `{2}`, `{2,}`, `{2,5}`.
fn is_quantifier(rest: &str) -> bool {
    let Some((inside, _)) = rest.split_once('}') else {
        return false;
    };
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !low.is_empty() && digits(low) && digits(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, options: &str, text: &str) -> bool {
        Pattern::compile(pattern, options).unwrap().is_match(text)
    }

    #[test]
    fn reads_pcre_syntax() {
        assert!(!matches(r"^\w$", "", "é"));
        assert!(matches("é", "i", "É"));
        assert!(matches("a$", "", "a\n"));
        assert!(!matches("a$", "", "a\nb"));
        assert!(matches("a$", "m", "a\nb"));
        assert!(matches("a{", "", "a{"));
        assert!(matches("^a{2}$", "", "aa"));
        assert!(matches("^a{,2}$", "", "a{,2}"));
        assert!(matches(r"\Qa.b\E", "", "a.b"));
        assert!(!matches(r"\Qa.b\E", "", "axb"));
        assert!(matches("(?=x)x", "", "x"));
        assert!(matches(r"(a)\1", "i", "AA"));
        assert!(matches(r"[\w-]+@[a&&b]", "", "x-y@&"));
        assert!(matches("[[]", "", "["));
        assert!(matches("[]]", "", "]"));
        assert!(matches("[[:alpha:]]", "", "q"));
        assert!(matches(r"a\/b", "", "a/b"));
        assert!(matches("a b # comment", "x", "ab"));
        assert!(matches("a.b", "s", "a\nb"));
    }

    #[test]
    fn refuses_with_mongodbs_codes() {
        let code = |p: &str, o: &str| Pattern::compile(p, o).unwrap_err().kind;
        assert_eq!(code("(", ""), ErrorKind::Location(51091));
        assert_eq!(code("a", "q"), ErrorKind::Location(51108));
    }

    #[test]
    fn knows_the_prefix_of_anchored_patterns() {
        let prefix = |p: &str, o: &str| Pattern::compile(p, o).unwrap().prefix();
        assert_eq!(prefix("^abc", ""), Some(("abc".into(), true)));
        assert_eq!(prefix("^abc.*", ""), Some(("abc".into(), false)));
        assert_eq!(prefix("^abc*", ""), Some(("ab".into(), false)));
        assert_eq!(prefix(r"^a\.b", ""), Some(("a.b".into(), true)));
        assert_eq!(prefix(r"^a\d", ""), Some(("a".into(), false)));
        assert_eq!(prefix("^a+b", ""), Some(("a".into(), false)));
        assert_eq!(prefix("^a|b", ""), None);
        assert_eq!(prefix("^abc", "i"), None);
        assert_eq!(prefix("abc", ""), None);
    }
}
