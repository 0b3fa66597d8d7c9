//! Regular expressions: PCRE's, as MongoDB has them, in UTF-8, with the options i, m, s and x.
//!
//! `pcre.rs` is the library: it decides what a pattern means, and is bounded in steps, time and
//! memory. `linear.rs` knows the patterns that Rust's engine answers in the same way, which is
//! faster and cannot run away. `braces.rs` keeps braces that MongoDB takes literally.

mod braces;
mod linear;
mod pcre;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};
use linear::Linear;
pub use pcre::MatchError;

/// A compiled regular expression and what it was compiled from. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pattern {
    compiled: Arc<Compiled>,
    /// What matching may use.
    budget: Budget,
}

#[derive(Debug)]
struct Compiled {
    source: Box<str>,
    options: Box<str>,
    code: pcre::Code,
    linear: Option<Linear>,
    /// Made when it is first needed: it costs more than the rest.
    engine: OnceLock<Option<regex::Regex>>,
}

/// Options that MongoDB takes; `u` is always on.
const OPTIONS: &str = "imsux";

/// How large the compiled patterns of one filter may be together, in bytes.
const COMPILED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What a pattern takes beside its code.
const PATTERN_BYTES: usize = 512;
/// The most patterns of one filter that get an engine of their own beside the library's code.
const ENGINES_MAX: usize = 100;

/// Compiles the patterns of one request and bounds what they take together.
#[derive(Debug, Default)]
pub(crate) struct Compiler {
    budget: Budget,
    bytes: std::cell::Cell<usize>,
    engines: std::cell::Cell<usize>,
}

impl Compiler {
    /// For patterns whose matches spend from the budget.
    pub fn new(budget: Budget) -> Compiler {
        Compiler {
            budget,
            ..Compiler::default()
        }
    }

    pub fn compile(&self, source: &str, options: &str) -> Result<Pattern, QueryError> {
        let linear = self.engines.get() < ENGINES_MAX;
        let budget = self.budget.clone();
        let pattern = Pattern::build(source, options, linear, budget)?;
        if pattern.compiled.linear.is_some() {
            self.engines.set(self.engines.get() + 1);
        }
        let bytes =
            self.bytes.get() + pattern.compiled.code.bytes() + PATTERN_BYTES + 2 * source.len();
        if bytes > COMPILED_BYTES_MAX {
            let message =
                format!("The regular expressions take more than {COMPILED_BYTES_MAX} bytes");
            return Err(QueryError::new(ErrorKind::ExceededMemoryLimit, message));
        }
        self.bytes.set(bytes);
        Ok(pattern)
    }
}

impl Pattern {
    pub fn compile(source: &str, options: &str) -> Result<Pattern, QueryError> {
        Pattern::build(source, options, true, Budget::unlimited())
    }

    fn build(
        source: &str,
        options: &str,
        linear: bool,
        budget: Budget,
    ) -> Result<Pattern, QueryError> {
        if let Some(unknown) = options.chars().find(|c| !OPTIONS.contains(*c)) {
            let message = format!(" invalid flag in regex options: {unknown}");
            return Err(QueryError::new(ErrorKind::Location(51108), message));
        }
        if source.contains('\0') {
            let message = "Regular expression cannot contain an embedded null byte";
            return Err(QueryError::new(ErrorKind::BadValue, message));
        }
        let code = pcre::Code::compile(&braces::literal(source), options).map_err(|reason| {
            let message = format!("Regular expression is invalid: {reason}");
            QueryError::new(ErrorKind::Location(51091), message)
        })?;
        let linear = linear.then(|| Linear::translate(source, options)).flatten();
        let compiled = Compiled {
            source: source.into(),
            options: options.into(),
            code,
            linear,
            engine: OnceLock::new(),
        };
        Ok(Pattern {
            compiled: Arc::new(compiled),
            budget,
        })
    }

    pub fn source(&self) -> &str {
        &self.compiled.source
    }

    pub fn options(&self) -> &str {
        &self.compiled.options
    }

    /// The pattern as a value. `None` if it was written with a zero byte, which none is.
    pub fn to_bson(&self) -> Option<bson::Regex> {
        Some(bson::Regex {
            pattern: self.source().try_into().ok()?,
            options: self.options().try_into().ok()?,
        })
    }

    /// The error is that of a match that was given up: nobody knows the answer.
    /// It ends soon after the operation has to that the pattern was compiled for.
    pub fn is_match(&self, text: &str) -> Result<bool, MatchError> {
        self.is_match_within(text, &self.budget)
    }

    pub(crate) fn is_match_within(&self, text: &str, budget: &Budget) -> Result<bool, MatchError> {
        match self.engine(text) {
            Some(engine) => {
                budget.spend_bytes(text.len()).map_err(MatchError::Ended)?;
                Ok(engine.is_match(text))
            }
            None => self.compiled.code.is_match(text, budget),
        }
    }

    fn engine(&self, text: &str) -> Option<&regex::Regex> {
        let linear = self
            .compiled
            .linear
            .as_ref()
            .filter(|linear| linear.suits(text))?;
        self.compiled
            .engine
            .get_or_init(|| linear.compile())
            .as_ref()
    }

    /// The first match at or after byte `start`: its range, and those of its groups.
    pub(crate) fn captures(
        &self,
        text: &str,
        start: usize,
        budget: &Budget,
    ) -> Result<Option<Vec<Option<Range<usize>>>>, MatchError> {
        // Where nothing is to be found, the faster engine knows.
        if start == 0 && !self.is_match_within(text, budget)? {
            return Ok(None);
        }
        self.compiled.code.captures(text, start, budget)
    }

    /// The text that every match starts with, if the pattern is anchored at the start, and whether
    /// starting with it is all there is to match.
    pub fn prefix(&self) -> Option<(String, bool)> {
        let source = self.source();
        let anchored = source
            .strip_prefix('^')
            .or_else(|| source.strip_prefix("\\A"))?;
        if self.compiled.options.contains(['i', 'm', 'x']) {
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
        self.source() == other.source() && self.options() == other.options()
    }
}

impl From<MatchError> for QueryError {
    fn from(error: MatchError) -> QueryError {
        let code = match error {
            MatchError::GaveUp(code) => code,
            MatchError::Ended(error) => return error,
        };
        let message =
            format!("Error occurred while executing the regular expression. Result code: {code}");
        QueryError::new(ErrorKind::Location(51156), message)
    }
}
