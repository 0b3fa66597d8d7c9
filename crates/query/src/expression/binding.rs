//! $let $map $filter $reduce: operators that give names to values

use bson::{RawArray, RawBson, RawBsonRef, RawDocument};

use banyan_document::number::Number;

use super::arena::{ArrayBuilder, byte_len};
use super::env::Env;
use super::node::{ExpressionNode, Special};
use super::operator::Operator;
use super::parse::{Parser, check_variable_name, malformed};
use super::value::{Value, check_depth, describe, error, is_nullish, is_true, items, type_name};
use crate::error::QueryError;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::special("$filter", filter),
    Operator::special("$let", bind),
    Operator::special("$map", map),
    Operator::special("$reduce", reduce),
];

const NULL: Value<'static> = Some(RawBsonRef::Null);

fn object<'a>(
    value: RawBsonRef<'a>,
    operator: &str,
    code: u32,
) -> Result<&'a RawDocument, QueryError> {
    match value {
        RawBsonRef::Document(document) => Ok(document),
        _ => error(
            code,
            format!("{operator} only supports an object as its argument"),
        ),
    }
}

/// The named parameters of `document`, unparsed, in the order of `names`.
fn parameters<'a, const N: usize>(
    document: &'a RawDocument,
    operator: &str,
    names: [&str; N],
    unknown_code: u32,
) -> Result<[Option<RawBsonRef<'a>>; N], QueryError> {
    let mut values = [None; N];
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        match names.iter().position(|known| *known == name.as_str()) {
            Some(index) => values[index] = Some(value),
            None => {
                return error(
                    unknown_code,
                    format!("Unrecognized parameter to {operator}: {name}"),
                );
            }
        }
    }
    Ok(values)
}

fn needed<'a>(
    value: Option<RawBsonRef<'a>>,
    name: &str,
    operator: &str,
    code: u32,
) -> Result<RawBsonRef<'a>, QueryError> {
    match value {
        Some(value) => Ok(value),
        None => error(code, format!("Missing '{name}' parameter to {operator}")),
    }
}

/// The name under which each element is bound: `as`, or `this`.
fn element_name<'a>(value: Option<RawBsonRef<'a>>) -> Result<&'a str, QueryError> {
    match value {
        None => Ok("this"),
        Some(RawBsonRef::String(name)) => {
            check_variable_name(name, true)?;
            Ok(name)
        }
        Some(_) => {
            check_variable_name("", true)?;
            Ok("this")
        }
    }
}

#[derive(Debug)]
struct Let {
    /// The slot of the first variable; the others have those after it.
    first: usize,
    variables: Vec<ExpressionNode>,
    body: ExpressionNode,
}

fn bind(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let document = object(value, "$let", 16874)?;
    let [vars, body] = parameters(document, "$let", ["vars", "in"], 16875)?;
    let vars = needed(vars, "vars", "$let", 16876)?;
    let body = needed(body, "in", "$let", 16877)?;
    let RawBsonRef::Document(vars) = vars else {
        return error(10065, "invalid parameter: expected an object (vars)");
    };
    let mut names = Vec::new();
    let mut variables = Vec::new();
    for element in vars.iter() {
        let (name, value) = element.map_err(malformed)?;
        check_variable_name(name.as_str(), true)?;
        // The values see the variables outside, not one another.
        variables.push(parser.operand(value)?);
        names.push(name.as_str());
    }
    let names: Vec<_> = names
        .into_iter()
        .map(|name| (name, parser.new_slot()))
        .collect();
    let first = names.first().map_or(0, |(_, slot)| *slot);
    let body = parser.scoped(&names, body)?;
    // What binds nothing is what is in it. With variables it is no constant, as in MongoDB, whatever
    // they and it are.
    if variables.is_empty() {
        return Ok(body);
    }
    Ok(ExpressionNode::special(Let {
        first,
        variables,
        body,
    }))
}

impl Special for Let {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            values.push(variable.evaluate(env)?);
        }
        self.body.evaluate(&env.bind_all(self.first, &values))
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        self.variables.iter().for_each(&mut *visit);
        visit(&self.body);
    }

    fn deterministic(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Map {
    input: ExpressionNode,
    slot: usize,
    body: ExpressionNode,
}

fn map(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let document = object(value, "$map", 16878)?;
    let [input, name, body] = parameters(document, "$map", ["input", "as", "in"], 16879)?;
    let input = needed(input, "input", "$map", 16880)?;
    let body = needed(body, "in", "$map", 16882)?;
    let name = element_name(name)?;
    let input = parser.operand(input)?;
    let slot = parser.new_slot();
    let body = parser.scoped(&[(name, slot)], body)?;
    Ok(ExpressionNode::special(Map { input, slot, body }))
}

/// The array that an operator goes through; `None` for null.
fn input_array<'a>(
    input: &'a ExpressionNode,
    env: &Env<'a>,
    operator: &str,
    code: u32,
) -> Result<Option<&'a RawArray>, QueryError> {
    match input.evaluate(env)? {
        Some(RawBsonRef::Array(array)) => Ok(Some(array)),
        input if is_nullish(input) => Ok(None),
        input => {
            let found = type_name(input);
            error(
                code,
                format!("input to {operator} must be an array not {found}"),
            )
        }
    }
}

impl Special for Map {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let Some(array) = input_array(&self.input, env, "$map", 16883)? else {
            return Ok(NULL);
        };
        let mut builder = ArrayBuilder::new();
        for item in items(array) {
            let frame = env.frame(self.slot, Some(item));
            let value = self.body.evaluate(&env.within(&frame))?;
            let value = value.unwrap_or(RawBsonRef::Null);
            env.budget.spend_bytes(byte_len(value))?;
            builder.push(value);
        }
        env.array(builder)
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.input);
        visit(&self.body);
    }
}

/// The length and the zero at the end.
const EMPTY_ARRAY_BYTES: usize = 5;

#[derive(Debug)]
struct Filter {
    input: ExpressionNode,
    slot: usize,
    condition: ExpressionNode,
    limit: Option<ExpressionNode>,
}

fn filter(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let document = object(value, "$filter", 28646)?;
    let [input, name, condition, limit] =
        parameters(document, "$filter", ["input", "as", "cond", "limit"], 28647)?;
    let input = needed(input, "input", "$filter", 28648)?;
    let condition = needed(condition, "cond", "$filter", 28650)?;
    let input = parser.operand(input)?;
    let name = element_name(name)?;
    let slot = parser.new_slot();
    let condition = parser.scoped(&[(name, slot)], condition)?;
    let limit = limit.map(|limit| parser.operand(limit)).transpose()?;
    Ok(ExpressionNode::special(Filter {
        input,
        slot,
        condition,
        limit,
    }))
}

impl Filter {
    fn limit(&self, env: &Env<'_>) -> Result<usize, QueryError> {
        let Some(limit) = &self.limit else {
            return Ok(usize::MAX);
        };
        // The value may live in the arena of `env`; only the number is kept.
        let value = limit.evaluate(env)?;
        if is_nullish(value) {
            return Ok(usize::MAX);
        }
        match value
            .and_then(Number::from_raw)
            .and_then(Number::to_i32_exact)
        {
            None => error(
                327391,
                format!(
                    "$filter: limit must be represented as a 32-bit integral value: {}",
                    describe(value)
                ),
            ),
            Some(limit) if limit < 1 => error(
                327392,
                format!("$filter: limit must be greater than 0: {limit}"),
            ),
            Some(limit) => Ok(limit as usize),
        }
    }
}

impl Special for Filter {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let Some(array) = input_array(&self.input, env, "$filter", 28651)? else {
            return Ok(NULL);
        };
        if array.as_bytes().len() == EMPTY_ARRAY_BYTES {
            return Ok(Some(RawBsonRef::Array(array)));
        }
        let limit = self.limit(env)?;
        let (mut builder, mut kept) = (ArrayBuilder::new(), 0);
        for item in items(array) {
            let frame = env.frame(self.slot, Some(item));
            if is_true(self.condition.evaluate(&env.within(&frame))?) {
                env.budget.spend_bytes(byte_len(item))?;
                builder.push(item);
                kept += 1;
                if kept == limit {
                    break;
                }
            }
        }
        env.array(builder)
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.input);
        visit(&self.condition);
        self.limit.iter().for_each(visit);
    }
}

#[derive(Debug)]
struct Reduce {
    input: ExpressionNode,
    initial: ExpressionNode,
    this: usize,
    value: usize,
    body: ExpressionNode,
}

fn reduce(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            40075,
            format!(
                "$reduce requires an object as an argument, found: {}",
                type_name(Some(value))
            ),
        );
    };
    let (this, value) = (parser.new_slot(), parser.new_slot());
    let (mut input, mut initial, mut body) = (None, None, None);
    // Each is parsed as it is written.
    for element in document.iter() {
        let (name, operand) = element.map_err(malformed)?;
        match name.as_str() {
            "input" => input = Some(parser.operand(operand)?),
            "initialValue" => initial = Some(parser.operand(operand)?),
            "in" => body = Some(parser.scoped(&[("this", this), ("value", value)], operand)?),
            _ => return error(40076, format!("$reduce found an unknown argument: {name}")),
        }
    }
    let needed = |operand: Option<ExpressionNode>, code, name: &str| match operand {
        Some(operand) => Ok(operand),
        None => error(code, format!("$reduce requires '{name}' to be specified")),
    };
    let input = needed(input, 40077, "input")?;
    let initial = needed(initial, 40078, "initialValue")?;
    let body = needed(body, 40079, "in")?;
    Ok(ExpressionNode::special(Reduce {
        input,
        initial,
        this,
        value,
        body,
    }))
}

impl Special for Reduce {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let input = self.input.evaluate(env)?;
        if is_nullish(input) {
            return Ok(NULL);
        }
        let Some(RawBsonRef::Array(array)) = input else {
            return error(
                40080,
                format!(
                    "$reduce requires that 'input' be an array, found: {}",
                    describe(input)
                ),
            );
        };
        let mut result: Option<RawBson> = self.initial.evaluate(env)?.map(Into::into);
        // Each step has an arena of its own: a growing result would otherwise leave all its
        // earlier versions behind.
        let mut arena = env.arena.beside();
        for item in items(array) {
            arena.reset();
            let next = {
                let step = env.with_arena(&arena);
                let value = result.as_ref().map(RawBson::as_raw_bson_ref);
                let this = step.frame(self.this, Some(item));
                let step = step.within(&this);
                let value = step.frame(self.value, value);
                let value = self.body.evaluate(&step.within(&value))?;
                // Looked through for its depth, and copied.
                env.budget.spend_bytes(2 * value.map_or(0, byte_len))?;
                value.map(check_depth).transpose()?;
                value.map(RawBson::from)
            };
            result = next;
        }
        env.arena
            .copy(result.as_ref().map(RawBson::as_raw_bson_ref))
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        [&self.input, &self.initial, &self.body]
            .into_iter()
            .for_each(visit);
    }
}
