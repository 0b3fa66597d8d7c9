//! The row of an operator in a table: how it is written, and what runs it.

use bson::RawBsonRef;

#[cfg(doc)]
use super::node::Arguments;
use super::node::{ExpressionNode, Run, Taking};
use super::parse::{NO_LIMIT, Parser, malformed};
use super::value::error;
use crate::error::{ErrorKind, QueryError};

#[derive(Debug)]
pub(super) struct Operator {
    pub name: &'static str,
    pub form: Form,
}

#[derive(Debug)]
pub(super) enum Form {
    /// `{$op: [a, b]}`, or `{$op: a}` for one argument that is not an array.
    Positional {
        min: usize,
        max: usize,
        operands: Operands,
        run: Run,
    },
    /// `{$op: {name: a, other: b}}`.
    Named {
        operands: Operands,
        parameters: &'static [Parameter],
        run: Run,
        reading: Reading,
        codes: NamedCodes,
    },
    /// Parses itself: binds variables, stops early, or prepares something.
    Special(fn(RawBsonRef<'_>, &mut Parser<'_>) -> Result<ExpressionNode, QueryError>),
    /// MongoDB has it and this server does not yet.
    NotImplemented,
}

/// In which order the operands of a named form are parsed, which decides what error is told.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading {
    /// As they are written, each with its name.
    AsWritten,
    /// In that of the parameters, once their names are known to be right.
    Forward,
    /// In the reverse.
    Backward,
    /// In one of the operator's own, by place.
    Own(&'static [usize]),
}

/// How an operator takes its operands, which decides what error is met first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operands {
    /// All are evaluated before any is looked at.
    Together,
    /// All before any is looked at, the last first.
    Backward,
    /// Each is evaluated where the operator asks for it.
    Asked,
    /// Each is looked at before the next one is evaluated, and null ends it.
    InTurn,
    /// In turn, and not while parsing, even where all are constants.
    InTurnLater,
    /// All before any is looked at, and not while parsing.
    TogetherLater,
    /// In turn, and constants beside each other become one while parsing.
    Associative,
    /// In turn, and all constants become one while parsing, which comes last.
    Commutative,
    /// As these, but all are evaluated before any is looked at.
    CommutativeTogether,
}

impl Operands {
    fn taking(self) -> Taking {
        match self {
            Operands::Together | Operands::TogetherLater | Operands::CommutativeTogether => {
                Taking::Together
            }
            Operands::Backward => Taking::Backward,
            Operands::Asked => Taking::Asked,
            Operands::InTurn
            | Operands::InTurnLater
            | Operands::Associative
            | Operands::Commutative => Taking::InTurn,
        }
    }
}

#[derive(Debug)]
pub(super) struct Parameter {
    pub name: &'static str,
    pub required: bool,
    /// Evaluated only where the operator asks for it ([`Arguments::fallback`]).
    pub is_fallback: bool,
}

/// The codes of a named form's parse errors: not an object, an unknown name, and for each parameter
/// that it is missing, the last code for all further ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedCodes {
    pub not_object: u32,
    pub unknown: u32,
    pub missing: &'static [u32],
}

impl Operator {
    /// Which parameters of a form with names are given, each as a bit. `None`: not all that is given
    /// is a parameter.
    pub(super) fn given(&self, value: RawBsonRef<'_>) -> Option<u32> {
        let (Form::Named { parameters, .. }, RawBsonRef::Document(document)) = (&self.form, value)
        else {
            return None;
        };
        let mut given = 0;
        for (name, _) in document.iter().map_while(Result::ok) {
            let mut names = parameters.iter().map(|parameter| parameter.name);
            given |= 1 << names.position(|known| known == name.as_str())?;
        }
        Some(given)
    }

    pub const fn fixed(name: &'static str, arity: usize, run: Run) -> Operator {
        Operator::ranged(name, arity, arity, run)
    }

    pub const fn ranged(name: &'static str, min: usize, max: usize, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min,
                max,
                operands: Operands::Together,
                run,
            },
        }
    }

    /// One that looks at each operand before it evaluates the next one.
    pub const fn in_turn(name: &'static str, min: usize, max: usize, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min,
                max,
                operands: Operands::InTurn,
                run,
            },
        }
    }

    /// Of two operands, of which the second is evaluated first.
    pub const fn backward(name: &'static str, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min: 2,
                max: 2,
                operands: Operands::Backward,
                run,
            },
        }
    }

    /// One that evaluates its operands itself.
    pub const fn asked(name: &'static str, min: usize, max: usize, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min,
                max,
                operands: Operands::Asked,
                run,
            },
        }
    }

    pub const fn variadic(name: &'static str, run: Run) -> Operator {
        Operator::ranged(name, 0, NO_LIMIT, run)
    }

    /// Of any number of operands, which may be put together in any way, in their order.
    pub const fn associative(name: &'static str, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min: 0,
                max: NO_LIMIT,
                operands: Operands::Associative,
                run,
            },
        }
    }

    /// Of any number of operands, in any order.
    pub const fn commutative(name: &'static str, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min: 0,
                max: NO_LIMIT,
                operands: Operands::Commutative,
                run,
            },
        }
    }

    /// Of any number of operands, in any order, all of which are evaluated.
    pub const fn commutative_together(name: &'static str, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min: 0,
                max: NO_LIMIT,
                operands: Operands::CommutativeTogether,
                run,
            },
        }
    }

    pub const fn special(
        name: &'static str,
        parse: fn(RawBsonRef<'_>, &mut Parser<'_>) -> Result<ExpressionNode, QueryError>,
    ) -> Operator {
        Operator {
            name,
            form: Form::Special(parse),
        }
    }

    pub const fn missing(name: &'static str) -> Operator {
        Operator {
            name,
            form: Form::NotImplemented,
        }
    }

    /// The operands, with those of calls of the same operator among them in the place of these calls.
    /// It may be put together in any way.
    fn with_inner(&self, arguments: Vec<ExpressionNode>) -> Vec<ExpressionNode> {
        // An only operand that is an array stands for its items.
        let goes_into_one = matches!(
            self.form,
            Form::Positional {
                operands: Operands::CommutativeTogether,
                ..
            }
        );
        let inner = |argument: &ExpressionNode| match argument {
            ExpressionNode::Call(call) if call.operator == self.name => {
                call.arguments.len() > 1 || !goes_into_one
            }
            _ => false,
        };
        if !arguments.iter().any(inner) {
            return arguments;
        }
        let mut all = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match &argument {
                ExpressionNode::Call(call) if inner(&argument) => {
                    all.extend(call.arguments.iter().cloned());
                }
                _ => all.push(argument),
            }
        }
        all
    }

    /// Reads what is written behind the name.
    pub fn parse(
        &self,
        value: RawBsonRef<'_>,
        parser: &mut Parser<'_>,
    ) -> Result<ExpressionNode, QueryError> {
        match &self.form {
            Form::Positional {
                min,
                max,
                operands,
                run,
            } => {
                let arguments = parser.arguments(self.name, *min, *max, value)?;
                let call = |arguments: Vec<ExpressionNode>| {
                    let call = ExpressionNode::call(self.name, *run, arguments, u32::MAX);
                    call.taken(operands.taking())
                };
                let arguments = match operands {
                    Operands::Together
                    | Operands::Backward
                    | Operands::Asked
                    | Operands::TogetherLater
                    | Operands::InTurn
                    | Operands::InTurnLater => arguments,
                    _ if parser.is_as_written() => arguments,
                    Operands::Associative => {
                        join_neighbours(self.with_inner(arguments), &call, parser)?
                    }
                    // Which of equal strings the set keeps depends on which of them is first.
                    Operands::Commutative if self.name == "$setUnion" && parser.collates() => {
                        join_neighbours(self.with_inner(arguments), &call, parser)?
                    }
                    Operands::Commutative | Operands::CommutativeTogether => {
                        join_all(self.with_inner(arguments), &call, parser)?
                    }
                };
                Ok(call(arguments))
            }
            Form::Named {
                operands,
                parameters,
                run,
                reading,
                codes,
            } => {
                let read = Named {
                    operator: self.name,
                    parameters,
                    codes: *codes,
                    as_it_is: *operands == Operands::InTurnLater,
                };
                let (arguments, given) = read.parse(value, *reading, parser)?;
                let call = ExpressionNode::call(self.name, *run, arguments, given);
                let call = call.taken(operands.taking());
                let call = call.with_fallbacks(fallbacks(parameters));
                Ok(match operands {
                    Operands::InTurnLater | Operands::TogetherLater => call.not_folded(),
                    _ => call,
                })
            }
            Form::Special(parse) => parse(value, parser),
            Form::NotImplemented => Err(QueryError::new(
                ErrorKind::NotImplemented,
                format!("the expression {} is not implemented yet", self.name),
            )),
        }
    }
}

pub(super) const fn required(name: &'static str) -> Parameter {
    Parameter {
        name,
        required: true,
        is_fallback: false,
    }
}

pub(super) const fn optional(name: &'static str) -> Parameter {
    Parameter {
        name,
        required: false,
        is_fallback: false,
    }
}

/// An optional one that takes the place of what cannot be worked out.
pub(super) const fn fallback(name: &'static str) -> Parameter {
    Parameter {
        name,
        required: false,
        is_fallback: true,
    }
}

fn fallbacks(parameters: &[Parameter]) -> u32 {
    let bit = |(index, parameter): (usize, &Parameter)| u32::from(parameter.is_fallback) << index;
    parameters.iter().enumerate().map(bit).sum()
}

type MakeCall<'c> = dyn Fn(Vec<ExpressionNode>) -> ExpressionNode + 'c;

/// What the operator makes of its constants, behind the other operands.
fn join_all(
    arguments: Vec<ExpressionNode>,
    call: &MakeCall<'_>,
    parser: &Parser<'_>,
) -> Result<Vec<ExpressionNode>, QueryError> {
    note_bound(&arguments, call, parser);
    let (constants, mut joined): (Vec<_>, Vec<_>) =
        arguments.into_iter().partition(ExpressionNode::is_fixed);
    if joined.is_empty() || constants.len() < 2 {
        joined.extend(constants);
    } else {
        joined.push(parser.fold(call(constants))?);
    }
    Ok(joined)
}

/// Variables of the `$lookup` stages around become constants, and are then put together with the others.
/// Where there is nothing else, the whole call is a constant.
fn note_bound(arguments: &[ExpressionNode], call: &MakeCall<'_>, parser: &Parser<'_>) {
    let constants = || arguments.iter().filter(|argument| argument.is_bound());
    let count = constants().count();
    let are_fixed = constants().all(ExpressionNode::is_fixed);
    if count > 1 && count < arguments.len() && !are_fixed {
        parser.note_bound(|| call(constants().cloned().collect()));
    }
}

/// What the operator makes of constants that stand beside each other, where they stood.
fn join_neighbours(
    arguments: Vec<ExpressionNode>,
    call: &MakeCall<'_>,
    parser: &Parser<'_>,
) -> Result<Vec<ExpressionNode>, QueryError> {
    if arguments.iter().all(ExpressionNode::is_fixed) {
        return Ok(arguments);
    }
    if !arguments.iter().all(ExpressionNode::is_bound) {
        for run in arguments.split(|argument| !argument.is_bound()) {
            if run.len() > 1 && !run.iter().all(ExpressionNode::is_fixed) {
                parser.note_bound(|| call(run.to_vec()));
            }
        }
    }
    let (mut joined, mut constants) = (Vec::with_capacity(arguments.len()), Vec::new());
    let settle = |constants: &mut Vec<ExpressionNode>, joined: &mut Vec<ExpressionNode>| {
        match constants.len() {
            0 | 1 => joined.append(constants),
            _ => joined.push(parser.fold(call(std::mem::take(constants)))?),
        }
        Ok::<(), QueryError>(())
    };
    for argument in arguments {
        if argument.is_fixed() {
            constants.push(argument);
            continue;
        }
        settle(&mut constants, &mut joined)?;
        joined.push(argument);
    }
    settle(&mut constants, &mut joined)?;
    Ok(joined)
}

/// A form with names, where it is read.
struct Named {
    operator: &'static str,
    parameters: &'static [Parameter],
    codes: NamedCodes,
    /// Not even its operands are evaluated while parsing.
    as_it_is: bool,
}

impl Named {
    /// `{name: operand, ...}` into the parameters' order, and which of them were given.
    fn parse(
        &self,
        value: RawBsonRef<'_>,
        reading: Reading,
        parser: &mut Parser<'_>,
    ) -> Result<(Vec<ExpressionNode>, u32), QueryError> {
        let RawBsonRef::Document(document) = value else {
            let operator = self.operator;
            return error(
                self.codes.not_object,
                format!("{operator} only supports an object as its argument"),
            );
        };
        let count = self.parameters.len();
        let mut arguments = vec![ExpressionNode::Missing; count];
        let mut written = vec![None; count];
        let mut given = 0;
        for element in document.iter() {
            let (name, value) = element.map_err(malformed)?;
            let index = self.place(name.as_str())?;
            if let Reading::AsWritten = reading {
                arguments[index] = self.operand(value, parser)?;
            }
            written[index] = Some(value);
            given |= 1 << index;
        }
        self.check_given(given)?;
        let mut read = |index: usize| {
            if let Some(value) = written[index] {
                arguments[index] = self.operand(value, parser)?;
            }
            Ok::<(), QueryError>(())
        };
        match reading {
            Reading::AsWritten => {}
            Reading::Forward => (0..count).try_for_each(&mut read)?,
            Reading::Backward => (0..count).rev().try_for_each(&mut read)?,
            Reading::Own(order) => order.iter().copied().try_for_each(&mut read)?,
        }
        Ok((arguments, given))
    }

    fn operand(
        &self,
        value: RawBsonRef<'_>,
        parser: &mut Parser<'_>,
    ) -> Result<ExpressionNode, QueryError> {
        match self.as_it_is {
            true => parser.operand_as_it_is(value),
            false => parser.operand(value),
        }
    }

    fn place(&self, name: &str) -> Result<usize, QueryError> {
        let known = self.parameters.iter().position(|known| known.name == name);
        known.map_or_else(
            || {
                error(
                    self.codes.unknown,
                    format!("Unrecognized argument to {}: {name}", self.operator),
                )
            },
            Ok,
        )
    }

    fn check_given(&self, given: u32) -> Result<(), QueryError> {
        let missing = &self.codes.missing;
        let last = missing.last().copied().unwrap_or_default();
        for (index, parameter) in self.parameters.iter().enumerate() {
            if parameter.required && given >> index & 1 == 0 {
                return error(
                    missing.get(index).copied().unwrap_or(last),
                    format!(
                        "Missing '{}' parameter to {}",
                        parameter.name, self.operator
                    ),
                );
            }
        }
        Ok(())
    }
}
