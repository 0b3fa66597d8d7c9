//! The patterns that Rust's engine answers like PCRE, in time linear in the text.
//!
//! They are those whose every part is listed here: characters, simple classes, groups, choices,
//! repetitions and anchors describe a regular language, and whether a text has a word of it is a
//! question with one answer, however it is searched. Whatever else a pattern has (look-around,
//! references, possessive parts, other escapes, what depends on the state of options) is left to
//! PCRE, and so is where a match lies, on which engines differ.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// The most states that an automaton may have, about; PCRE compiles larger patterns cheaper.
const STATES_MAX: usize = 2000;
/// The most steps that a search may take: an automaton of many states in a long text is left to
/// PCRE, which can be ended.
const STEPS_MAX: usize = 128 * 1024 * 1024;
/// A class of more than ASCII, in states.
const WIDE: usize = 8;

/// A pattern in the syntax of Rust's engine.
#[derive(Debug)]
pub(super) struct Linear {
    translated: String,
    caseless: bool,
    dot_all: bool,
    states: usize,
}

impl Linear {
    /// `None` if there is something in the pattern that is not known to mean the same.
    pub fn translate(source: &str, options: &str) -> Option<Linear> {
        let (inline, source) = inline_options(source)?;
        let has = |option| options.contains(option) || inline.contains(option);
        if has('x') {
            return None;
        }
        let mut translator = Translator {
            rest: source.chars().peekable(),
            out: String::with_capacity(source.len() + 16),
            caseless: has('i'),
            lines: has('m'),
            open: vec![Group::default()],
            atom: None,
        };
        while let Some(c) = translator.rest.next() {
            translator.part(c)?;
        }
        let [whole] = translator.open.as_slice() else {
            return None;
        };
        let states = whole.states;
        (states <= STATES_MAX).then_some(Linear {
            translated: translator.out,
            caseless: has('i'),
            dot_all: has('s'),
            states,
        })
    }

    pub fn compile(&self) -> Option<Regex> {
        RegexBuilder::new(&self.translated)
            .case_insensitive(self.caseless)
            .dot_matches_new_line(self.dot_all)
            .size_limit(1024 * 1024)
            .dfa_size_limit(512 * 1024)
            .build()
            .ok()
    }

    /// Whether the text is short enough.
    pub fn suits(&self, text: &str) -> bool {
        self.states.saturating_mul(text.len()) <= STEPS_MAX
    }
}

/// `(?i)` and the like at the start of a pattern, and what follows.
fn inline_options(source: &str) -> Option<(&str, &str)> {
    let Some(rest) = source.strip_prefix("(?") else {
        return Some(("", source));
    };
    let (options, after) = rest.split_once(')')?;
    let known = options.chars().all(|c| matches!(c, 'i' | 'm' | 's'));
    match known && !options.is_empty() {
        true => Some((options, after)),
        // Some other group.
        false => Some(("", source)),
    }
}

/// A group that is open.
#[derive(Default)]
struct Group {
    states: usize,
    /// Whether a `$` stands in it, after which nothing may follow.
    ends: bool,
}

/// What a repetition would be of.
struct Atom {
    states: usize,
    ends: bool,
}

struct Translator<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    caseless: bool,
    lines: bool,
    open: Vec<Group>,
    atom: Option<Atom>,
}

impl Translator<'_> {
    fn part(&mut self, c: char) -> Option<()> {
        match c {
            '\\' => self.escape()?,
            '[' => self.class()?,
            '(' => self.open()?,
            ')' => self.close()?,
            '|' => {
                self.atom = None;
                self.out.push('|');
            }
            '.' => self.simple(".", WIDE),
            '^' => self.start()?,
            '$' => self.end()?,
            '*' | '+' | '?' => self.repeat(&c.to_string(), 1)?,
            '{' => match quantifier(self.rest.clone()) {
                Some((text, most)) => {
                    self.rest.nth(text.len() - 2);
                    self.repeat(&text, most)?;
                }
                None => self.character('{')?,
            },
            other => self.character(other)?,
        }
        Some(())
    }

    fn group(&mut self) -> Option<&mut Group> {
        self.open.last_mut()
    }

    fn simple(&mut self, text: &str, states: usize) {
        self.out.push_str(text);
        self.atom(states, false);
    }

    fn atom(&mut self, states: usize, ends: bool) {
        if let Some(group) = self.group() {
            group.states = group.states.saturating_add(states);
        }
        self.atom = Some(Atom { states, ends });
    }

    fn character(&mut self, c: char) -> Option<()> {
        // Foldings of letters beyond ASCII follow the version of Unicode.
        if self.caseless && !c.is_ascii() {
            return None;
        }
        push_character(&mut self.out, c);
        self.atom(c.len_utf8(), false);
        Some(())
    }

    fn escape(&mut self) -> Option<()> {
        let c = self.rest.next()?;
        match (c, class_of(c)) {
            // Without regard to case `\w` is what it is with it.
            ('w' | 'W', Some(class)) if self.caseless => {
                let class = format!("(?-i:{class})");
                self.simple(&class, WIDE);
            }
            (_, Some(class)) => self.simple(class, WIDE),
            ('b', _) => {
                self.out.push_str(r"(?-u:\b)");
                self.nothing_repeats()?;
            }
            _ => {
                let c = control(c).or(c.is_ascii_punctuation().then_some(c))?;
                self.character(c)?;
            }
        }
        Some(())
    }

    fn class(&mut self) -> Option<()> {
        self.out.push('[');
        let mut states = 1;
        if self.rest.next_if_eq(&'^').is_some() {
            self.out.push('^');
            states = WIDE;
        }
        if self.rest.peek() == Some(&']') {
            return None;
        }
        loop {
            let low = match self.rest.next()? {
                ']' => break,
                '[' => return None,
                '\\' => {
                    let c = self.rest.next()?;
                    if let Some(class) = class_of(c) {
                        if self.caseless && matches!(c, 'w' | 'W') {
                            return None;
                        }
                        self.out.push_str(class);
                        states = WIDE;
                        self.no_range()?;
                        continue;
                    }
                    control(c).or(c.is_ascii_punctuation().then_some(c))?
                }
                other => other,
            };
            let high = self.range_end()?;
            for c in [Some(low), high].into_iter().flatten() {
                if !c.is_ascii() {
                    states = WIDE;
                    if self.caseless {
                        return None;
                    }
                }
            }
            push_character(&mut self.out, low);
            if let Some(high) = high {
                self.out.push('-');
                push_character(&mut self.out, high);
                self.no_range()?;
            }
        }
        self.out.push(']');
        self.atom(states, false);
        Some(())
    }

    /// The end of a range in a class, if it is one; `None` where that is not simply told.
    fn range_end(&mut self) -> Option<Option<char>> {
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('-') || ahead.peek() == Some(&']') {
            return Some(None);
        }
        match ahead.next()? {
            '[' | '\\' => None,
            high => {
                self.rest = ahead;
                Some(Some(high))
            }
        }
    }

    /// What has just been read starts no range. A hyphen may only close the class.
    fn no_range(&mut self) -> Option<()> {
        let mut ahead = self.rest.clone();
        match (ahead.next(), ahead.next()) {
            (Some('-'), Some(']')) => Some(()),
            (Some('-'), _) => None,
            _ => Some(()),
        }
    }

    fn open(&mut self) -> Option<()> {
        if self.rest.next_if_eq(&'?').is_some() {
            self.rest.next_if_eq(&':')?;
        }
        if self.rest.peek() == Some(&'*') {
            return None;
        }
        self.out.push_str("(?:");
        self.open.push(Group::default());
        self.atom = None;
        Some(())
    }

    fn close(&mut self) -> Option<()> {
        let Group { states, ends } = self.open.pop()?;
        self.out.push(')');
        self.atom(states, ends);
        if ends {
            self.nothing_follows()?;
            self.group()?.ends = true;
        }
        Some(())
    }

    fn start(&mut self) -> Option<()> {
        if !self.lines {
            self.out.push('^');
            return self.nothing_repeats();
        }
        // PCRE has no line begin after a newline at the very end of a text, so there has to be
        // something in it.
        let mut ahead = self.rest.clone();
        let first = ahead.next().is_some_and(|c| c.is_ascii_alphanumeric());
        let stays = !matches!(ahead.next(), Some('*' | '?' | '{' | '|'));
        self.out.push_str("(?m:^)");
        self.atom = None;
        (first && stays).then_some(())
    }

    fn end(&mut self) -> Option<()> {
        if self.lines {
            self.out.push_str("(?m:$)");
            return self.nothing_repeats();
        }
        // Before a newline at the end, too. It is taken in, so nothing may follow.
        self.out.push_str(r"(?:\n?\z)");
        self.atom = None;
        self.nothing_follows()?;
        self.group()?.ends = true;
        Some(())
    }

    fn nothing_repeats(&mut self) -> Option<()> {
        self.atom = None;
        (!matches!(self.rest.peek(), Some('*' | '+' | '?' | '{'))).then_some(())
    }

    fn nothing_follows(&mut self) -> Option<()> {
        matches!(self.rest.peek(), None | Some(')' | '|')).then_some(())
    }

    fn repeat(&mut self, text: &str, most: usize) -> Option<()> {
        let atom = self.atom.take().filter(|atom| !atom.ends)?;
        // What a possessive repetition takes it does not give back.
        if self.rest.peek() == Some(&'+') {
            return None;
        }
        self.out.push_str(text);
        if self.rest.next_if_eq(&'?').is_some() {
            self.out.push('?');
        }
        let more = atom.states.max(1).saturating_mul(most.max(1) - 1);
        let group = self.group()?;
        group.states = group.states.saturating_add(more);
        Some(())
    }
}

/// The classes that have a letter, as they are in ASCII.
fn class_of(c: char) -> Option<&'static str> {
    Some(match c {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        's' => r"[\t\n\x0B\x0C\r\x20]",
        'S' => r"[^\t\n\x0B\x0C\r\x20]",
        _ => return None,
    })
}

fn control(c: char) -> Option<char> {
    match c {
        't' => Some('\t'),
        'n' => Some('\n'),
        'r' => Some('\r'),
        'f' => Some('\x0C'),
        _ => None,
    }
}

fn push_character(out: &mut String, c: char) {
    if c.is_ascii_alphanumeric() || !c.is_ascii() {
        out.push(c);
    } else {
        let _ = write!(out, "\\x{{{:X}}}", u32::from(c));
    }
}

/// A repetition (`{2}`, `{2,}`, `{2,5}`), its brace already read, and how many it is at most.
pub(super) fn quantifier(rest: impl Iterator<Item = char>) -> Option<(String, usize)> {
    let mut text = String::from("{");
    for c in rest.take(12) {
        text.push(c);
        match c {
            '0'..='9' | ',' => {}
            '}' => break,
            _ => return None,
        }
    }
    let inside = text.strip_prefix('{')?.strip_suffix('}')?;
    let (low, high) = inside.split_once(',').unwrap_or((inside, inside));
    let low: usize = low.parse().ok()?;
    let high = match high {
        "" => low + 1,
        high => high.parse().ok()?,
    };
    Some((text, high))
}
