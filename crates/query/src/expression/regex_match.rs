//! $regexMatch $regexFind $regexFindAll

use std::borrow::Cow;

use bson::RawBsonRef;

use banyan_document::DocumentWriter;

use super::arena::{ArrayBuilder, check_size};
use super::env::Env;
use super::node::{ExpressionNode, Special};
use super::operator::Operator;
use super::parse::{Parser, malformed};
use super::value::{Value, error, is_nullish, type_name};
use crate::error::{ErrorKind, QueryError};
use crate::pattern::{MatchError, Pattern};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::special("$regexFind", |value, parser| {
        parse(Answer::First, value, parser)
    }),
    Operator::special("$regexFindAll", |value, parser| {
        parse(Answer::All, value, parser)
    }),
    Operator::special("$regexMatch", |value, parser| {
        parse(Answer::Whether, value, parser)
    }),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Whether,
    First,
    All,
}

impl Answer {
    fn operator(self) -> &'static str {
        match self {
            Answer::Whether => "$regexMatch",
            Answer::First => "$regexFind",
            Answer::All => "$regexFindAll",
        }
    }

    /// What a null input or pattern gives.
    fn nothing<'a>(self, env: &Env<'a>) -> Result<Value<'a>> {
        match self {
            Answer::Whether => Ok(Some(RawBsonRef::Boolean(false))),
            Answer::First => Ok(NULL),
            Answer::All => env.array(ArrayBuilder::new()),
        }
    }
}

#[derive(Debug)]
struct RegexMatch {
    answer: Answer,
    input: ExpressionNode,
    regex: ExpressionNode,
    options: ExpressionNode,
    /// Compiled once where the pattern is constant, as it nearly always is.
    compiled: Option<Pattern>,
}

fn parse(answer: Answer, value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode> {
    let operator = answer.operator();
    let RawBsonRef::Document(document) = value else {
        return error(
            51103,
            format!(
                "{operator} expects an object of named arguments but found: {}",
                type_name(Some(value))
            ),
        );
    };
    let (mut input, mut regex, mut options) = (None, None, ExpressionNode::Missing);
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        match name.as_str() {
            "input" => input = Some(parser.operand(value)?),
            "regex" => regex = Some(parser.operand(value)?),
            "options" => options = parser.operand(value)?,
            other => {
                return error(31024, format!("{operator} found unknown argument: {other}"));
            }
        }
    }
    let Some(input) = input else {
        return error(31022, format!("{operator} requires 'input' parameter"));
    };
    let Some(regex) = regex else {
        return error(31023, format!("{operator} requires 'regex' parameter"));
    };
    let mut parsed = RegexMatch {
        answer,
        input,
        regex,
        options,
        compiled: None,
    };
    if let (Some(regex), Some(options)) = (constant(&parsed.regex), constant(&parsed.options)) {
        match compile(answer.operator(), with_options(regex, options), options) {
            Ok(compiled) if !is_nullish(regex) => parsed.compiled = compiled,
            Ok(_) => {}
            Err(error) => parser.context.folding.failed(error)?,
        }
    }
    let (regex, options) = (&parsed.regex, &parsed.options);
    let are_constant = regex.is_constant() && options.is_constant();
    if regex.is_bound() && options.is_bound() && !are_constant {
        parser.note_bound(|| {
            ExpressionNode::special(Compiled {
                answer,
                regex: regex.clone(),
                options: options.clone(),
            })
        });
    }
    Ok(ExpressionNode::special(parsed))
}

/// A pattern that is known before any document is.
#[derive(Debug)]
struct Compiled {
    answer: Answer,
    regex: ExpressionNode,
    options: ExpressionNode,
}

impl Special for Compiled {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        let (regex, options) = (self.regex.evaluate(env)?, self.options.evaluate(env)?);
        compile(
            self.answer.operator(),
            with_options(regex, options),
            options,
        )?;
        Ok(None)
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        [&self.regex, &self.options].into_iter().for_each(visit);
    }
}

/// Options are read even where there is no pattern.
fn with_options<'a>(regex: Value<'a>, options: Value<'a>) -> Value<'a> {
    match regex {
        pattern if is_nullish(pattern) && options.is_some() => Some(RawBsonRef::String("")),
        pattern => pattern,
    }
}

/// What an operand is worth whatever the document is, if that is known.
fn constant(operand: &ExpressionNode) -> Option<Value<'_>> {
    match operand {
        ExpressionNode::Constant(value) => Some(Some(value.as_raw_bson_ref())),
        ExpressionNode::Missing => Some(None),
        _ => None,
    }
}

/// `None` where there is no pattern.
fn compile(operator: &str, regex: Value<'_>, options: Value<'_>) -> Result<Option<Pattern>> {
    let is_pattern = matches!(
        regex,
        Some(RawBsonRef::String(_) | RawBsonRef::RegularExpression(_))
    );
    if !is_pattern && !is_nullish(regex) {
        return error(
            51105,
            format!("{operator} needs 'regex' to be of type string or regex"),
        );
    }
    let given = match options {
        value if is_nullish(value) => None,
        Some(RawBsonRef::String(options)) => Some(options),
        _ => {
            return error(
                51106,
                format!("{operator} needs 'options' to be of type string"),
            );
        }
    };
    let (source, options) = match regex {
        Some(RawBsonRef::String(source)) => (source, given.unwrap_or_default()),
        Some(RawBsonRef::RegularExpression(regex)) => {
            let own = regex.options.as_str();
            if !own.is_empty() && given.is_some() {
                return error(
                    51107,
                    format!(
                        "{operator}: found regex option(s) specified in both 'regex' and 'option' \
                         fields"
                    ),
                );
            }
            (
                regex.pattern.as_str(),
                if own.is_empty() {
                    given.unwrap_or_default()
                } else {
                    own
                },
            )
        }
        // Options that there are not are told of nevertheless.
        _ => ("", given.unwrap_or_default()),
    };
    if source.contains('\0') {
        return error(
            51109,
            format!("{operator}: regular expression cannot contain an embedded null byte"),
        );
    }
    if options.contains('\0') {
        return error(
            51110,
            format!("{operator}: regular expression options cannot contain an embedded null byte"),
        );
    }
    match Pattern::compile(source, options) {
        Ok(pattern) => Ok(Some(pattern).filter(|_| is_pattern)),
        Err(problem) if problem.kind == ErrorKind::Location(51108) => {
            error(51108, format!("{operator}{}", problem.message))
        }
        Err(problem) => error(
            51111,
            format!("Invalid Regex in {operator}: {}", problem.message),
        ),
    }
}

impl RegexMatch {
    fn pattern<'a>(&'a self, env: &Env<'a>) -> Result<Option<Cow<'a, Pattern>>> {
        if let Some(pattern) = &self.compiled {
            return Ok(Some(Cow::Borrowed(pattern)));
        }
        let (regex, options) = (self.regex.evaluate(env)?, self.options.evaluate(env)?);
        Ok(compile(self.answer.operator(), regex, options)?.map(Cow::Owned))
    }

    fn gave_up(&self, error: MatchError) -> QueryError {
        let code = match error {
            MatchError::GaveUp(code) => code,
            MatchError::Ended(error) => return error,
        };
        let message = format!(
            "Error occurred while executing the regular expression in {}. Result code: {code}",
            self.answer.operator()
        );
        QueryError::new(ErrorKind::Location(51156), message)
    }

    fn find_all<'a>(&self, text: &str, pattern: &Pattern, env: &Env<'a>) -> Result<Value<'a>> {
        let mut builder = ArrayBuilder::new();
        let (mut position, mut counted, mut points) = (0, 0, 0);
        // The search does not begin at the very end, unless the text is empty.
        loop {
            let found = pattern.captures(text, position, env.budget);
            let Some(groups) = found.map_err(|e| self.gave_up(e))? else {
                break;
            };
            let Some(Some(range)) = groups.first().cloned() else {
                break;
            };
            points += text[counted..range.start].chars().count();
            counted = range.start;
            // Finding and writing a match is a hundred steps and more.
            env.budget.spend_bytes(range.end - position)?;
            env.budget.spend(100)?;
            builder.writer.push_document();
            write_match(text, &groups, points, &mut builder.writer);
            builder.writer.end();
            check_size(builder.writer.len())?;
            position = range.end;
            if range.is_empty() {
                position += text[position..].chars().next().map_or(1, char::len_utf8);
            }
            if position >= text.len() {
                break;
            }
        }
        env.array(builder)
    }
}

impl Special for RegexMatch {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        let text = match self.input.evaluate(env)? {
            Some(RawBsonRef::String(text)) => Some(text),
            value if is_nullish(value) => None,
            _ => {
                return error(
                    51104,
                    format!(
                        "{} needs 'input' to be of type string",
                        self.answer.operator()
                    ),
                );
            }
        };
        let (Some(text), Some(pattern)) = (text, self.pattern(env)?) else {
            return self.answer.nothing(env);
        };
        match self.answer {
            Answer::Whether => {
                let found = pattern.is_match_within(text, env.budget);
                let found = found.map_err(|e| self.gave_up(e))?;
                Ok(Some(RawBsonRef::Boolean(found)))
            }
            Answer::First => match pattern
                .captures(text, 0, env.budget)
                .map_err(|e| self.gave_up(e))?
            {
                None => Ok(NULL),
                Some(groups) => {
                    let mut writer = DocumentWriter::new();
                    write_match(text, &groups, code_points(text, &groups), &mut writer);
                    env.document(writer)
                }
            },
            Answer::All => self.find_all(text, &pattern, env),
        }
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        [&self.input, &self.regex, &self.options]
            .into_iter()
            .for_each(visit);
    }
}

type Groups = [Option<std::ops::Range<usize>>];

fn code_points(text: &str, groups: &Groups) -> usize {
    let start = groups
        .first()
        .and_then(Option::as_ref)
        .map_or(0, |range| range.start);
    text[..start].chars().count()
}

/// `{match, idx, captures}`; `idx` counts code points.
fn write_match(text: &str, groups: &Groups, index: usize, writer: &mut DocumentWriter) {
    let part = |group: &Option<std::ops::Range<usize>>| match group {
        Some(range) => RawBsonRef::String(&text[range.clone()]),
        None => RawBsonRef::Null,
    };
    if let Some(whole) = groups.first() {
        writer.append("match", part(whole));
    }
    writer.append_i32("idx", i32::try_from(index).unwrap_or(i32::MAX));
    writer.begin_array("captures");
    groups
        .iter()
        .skip(1)
        .for_each(|group| writer.push(part(group)));
    writer.end();
}
