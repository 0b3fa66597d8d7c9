//! $cond $ifNull $switch: only the branch that is taken is evaluated

use std::sync::Arc;

use bson::RawBsonRef;

use super::env::Env;
use super::node::{ExpressionNode, Special};
use super::operator::Operator;
use super::parse::{NO_LIMIT, OuterConstant, Parser, malformed};
use super::value::{Value, error, is_nullish, is_true, items, type_name};
use crate::context::{Aside, BoundConstant};
use crate::error::{ErrorKind, QueryError};
use crate::variables::Variables;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::special("$cond", cond),
    Operator::special("$ifNull", if_null),
    Operator::special("$switch", switch),
];

#[derive(Debug)]
struct Cond {
    test: ExpressionNode,
    then: ExpressionNode,
    otherwise: ExpressionNode,
}

fn cond(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let RawBsonRef::Document(document) = value else {
        let mut arguments = parser.arguments("$cond", 3, 3, value)?.into_iter();
        let mut next = || arguments.next().unwrap_or(ExpressionNode::Missing);
        return Ok(Cond {
            test: next(),
            then: next(),
            otherwise: next(),
        }
        .decided(parser));
    };
    let (mut test, mut then, mut otherwise) = (None, None, None);
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        let slot = match name.as_str() {
            "if" => &mut test,
            "then" => &mut then,
            "else" => &mut otherwise,
            other => return error(17083, format!("Unrecognized parameter to $cond: {other}")),
        };
        *slot = Some(parser.operand(value)?);
    }
    let Some(test) = test else {
        return error(17080, "Missing 'if' parameter to $cond");
    };
    let Some(then) = then else {
        return error(17081, "Missing 'then' parameter to $cond");
    };
    let Some(otherwise) = otherwise else {
        return error(17082, "Missing 'else' parameter to $cond");
    };
    Ok(Cond {
        test,
        then,
        otherwise,
    }
    .decided(parser))
}

/// What a test comes to, if it is a constant.
fn decision(test: &ExpressionNode) -> Option<bool> {
    match test {
        ExpressionNode::Constant(value) => Some(is_true(Some(value.as_raw_bson_ref()))),
        ExpressionNode::Missing => Some(false),
        _ => None,
    }
}

impl Cond {
    /// The branch that is always taken, if there is one.
    fn decided(self, parser: &Parser<'_>) -> ExpressionNode {
        match decision(&self.test).filter(|_| !parser.is_as_written()) {
            Some(true) => self.then,
            Some(false) => self.otherwise,
            None => ExpressionNode::special(self),
        }
    }
}

impl Special for Cond {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        if is_true(self.test.evaluate(env)?) {
            self.then.evaluate(env)
        } else {
            self.otherwise.evaluate(env)
        }
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        [&self.test, &self.then, &self.otherwise]
            .into_iter()
            .for_each(visit);
    }
}

#[derive(Debug)]
struct IfNull {
    operands: Vec<ExpressionNode>,
}

fn if_null(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let operands = parser.arguments("$ifNull", 0, NO_LIMIT, value)?;
    if operands.len() < 2 {
        return error(
            1257300,
            format!(
                "$ifNull needs at least two arguments, had: {}",
                operands.len()
            ),
        );
    }
    if parser.is_as_written() {
        return Ok(ExpressionNode::special(IfNull { operands }));
    }
    // A constant that has no value is never the result, and behind one that has nothing is reached.
    let mut needed: Vec<ExpressionNode> = Vec::with_capacity(operands.len());
    let mut operands = operands.into_iter().peekable();
    while let Some(operand) = operands.next() {
        let is_null = match &operand {
            ExpressionNode::Constant(value) => is_nullish(Some(value.as_raw_bson_ref())),
            ExpressionNode::Missing => true,
            _ => {
                needed.push(operand);
                continue;
            }
        };
        if !is_null {
            needed.push(operand);
            break;
        }
        // The last one is what is left if all are null.
        if operands.peek().is_none() {
            needed.push(operand);
        }
    }
    match needed.len() {
        1 => Ok(needed.swap_remove(0)),
        _ => Ok(ExpressionNode::special(IfNull { operands: needed })),
    }
}

impl Special for IfNull {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let Some((last, front)) = self.operands.split_last() else {
            return Ok(None);
        };
        for operand in front {
            let value = operand.evaluate(env)?;
            if !is_nullish(value) {
                return Ok(value);
            }
        }
        last.evaluate(env)
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        self.operands.iter().for_each(visit);
    }
}

#[derive(Debug)]
struct Switch {
    branches: Vec<(ExpressionNode, ExpressionNode)>,
    default: Option<ExpressionNode>,
}

fn switch(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            40060,
            format!(
                "$switch requires an object as an argument, found: {}",
                type_name(Some(value))
            ),
        );
    };
    let folding = parser.context.folding.clone();
    let (mut branches, mut default) = (Vec::new(), None);
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        match (name.as_str(), value) {
            ("branches", RawBsonRef::Array(array)) => {
                for item in items(array) {
                    branches.push(branch(item, parser)?);
                }
            }
            ("branches", other) => {
                return error(
                    40061,
                    format!(
                        "$switch expected an array for 'branches', found: {}",
                        type_name(Some(other))
                    ),
                );
            }
            ("default", value) => {
                default = Some(folding.set_aside(|| parser.operand(value))?);
            }
            (other, _) => {
                return error(40067, format!("$switch found an unknown argument: {other}"));
            }
        }
    }
    if branches.is_empty() {
        return error(40068, "$switch requires at least one branch");
    }
    let is_bound = |case: &ExpressionNode| decision(case).is_none() && case.is_bound();
    // Which branches are taken may be known once the variables around are.
    let follows_variables = !parser.is_as_written()
        && folding.is_for_bindings()
        && branches
            .iter()
            .any(|((case, _), _): &(Operand, Operand)| is_bound(case));
    let mut later = follows_variables.then(BoundSwitch::default);
    let mut switch = Switch {
        branches: Vec::with_capacity(branches.len()),
        default: None,
    };
    if let Some((default, in_default)) = default {
        // Its constants are evaluated first, even if it is never taken.
        match &mut later {
            Some(later) => later.default = Some(in_default),
            None => folding.put_back(in_default)?,
        }
        switch.default = Some(default);
    }
    for ((case, in_case), (then, in_then)) in branches {
        let decided = decision(&case).filter(|_| !parser.is_as_written());
        match &mut later {
            Some(later) => later.branches.push(BoundBranch {
                case: case.is_bound().then(|| parser.outer_constant(case.clone())),
                in_case,
                in_then,
            }),
            None => {
                folding.put_back(in_case)?;
                // The constants of a branch that is never taken are not evaluated.
                if decided != Some(false) {
                    folding.put_back(in_then)?;
                }
            }
        }
        match decided {
            Some(false) => {}
            Some(true) => {
                switch.default = Some(then);
                break;
            }
            None => switch.branches.push((case, then)),
        }
    }
    if let Some(later) = later {
        folding.note_bound(|| Arc::new(later));
    } else if switch.branches.is_empty() && switch.default.is_none() {
        parser.failed(no_branch())?;
    }
    match switch.default {
        Some(always) if switch.branches.is_empty() => Ok(always),
        default => Ok(ExpressionNode::special(Switch { default, ..switch })),
    }
}

fn no_branch() -> QueryError {
    QueryError::new(
        ErrorKind::Location(40069),
        "Cannot execute a switch statement where all the cases evaluate to false without a default",
    )
}

/// The constants of a `$switch`, of which the variables around decide which are evaluated.
#[derive(Debug, Default)]
struct BoundSwitch {
    default: Option<Aside>,
    branches: Vec<BoundBranch>,
}

#[derive(Debug)]
struct BoundBranch {
    /// `None`: it depends on a document.
    case: Option<OuterConstant>,
    in_case: Aside,
    in_then: Aside,
}

impl BoundConstant for BoundSwitch {
    fn check(&self, variables: &Variables) -> Result<(), QueryError> {
        if let Some(default) = &self.default {
            default.check(variables)?;
        }
        let mut may_be_taken = self.default.is_some();
        for branch in &self.branches {
            branch.in_case.check(variables)?;
            let case = branch.case.as_ref();
            match case.map(|case| case.look(variables, is_true)).transpose()? {
                Some(false) => {}
                Some(true) => return branch.in_then.check(variables),
                None => {
                    branch.in_then.check(variables)?;
                    may_be_taken = true;
                }
            }
        }
        match may_be_taken {
            true => Ok(()),
            false => Err(no_branch()),
        }
    }
}

/// With what its constants have failed with.
type Operand = (ExpressionNode, Aside);

/// The case of a branch and what it comes to.
fn branch(
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<(Operand, Operand), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            40062,
            format!(
                "$switch expected each branch to be an object, found: {}",
                type_name(Some(value))
            ),
        );
    };
    let folding = parser.context.folding.clone();
    let (mut case, mut then) = (None, None);
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        match name.as_str() {
            "case" => case = Some(folding.set_aside(|| parser.operand(value))?),
            "then" => then = Some(folding.set_aside(|| parser.operand(value))?),
            other => {
                return error(
                    40063,
                    format!("$switch found an unknown argument to a branch: {other}"),
                );
            }
        }
    }
    let Some(case) = case else {
        return error(
            40064,
            "$switch requires each branch have a 'case' expression",
        );
    };
    let Some(then) = then else {
        return error(
            40065,
            "$switch requires each branch have a 'then' expression.",
        );
    };
    Ok((case, then))
}

impl Special for Switch {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        for (case, then) in &self.branches {
            if is_true(case.evaluate(env)?) {
                return then.evaluate(env);
            }
        }
        match &self.default {
            Some(default) => default.evaluate(env),
            None => error(
                40066,
                "$switch could not find a matching branch for an input, and no default was \
                 specified.",
            ),
        }
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        for (case, then) in &self.branches {
            visit(case);
            visit(then);
        }
        self.default.iter().for_each(visit);
    }
}
