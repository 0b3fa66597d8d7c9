//! Operators over arrays as sets: results are sorted and hold each value once

use bson::{RawArray, RawBsonRef};

use super::arena::byte_len;
use super::env::Env;
use super::node::{Arguments, ExpressionNode, Run, Special, Taking};
use super::operator::Operator;
use super::parse::Parser;
use super::value::{Value, error, is_nullish, is_true, items, type_name};
use crate::error::{ErrorKind, QueryError};
use crate::merge_sort;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::fixed("$allElementsTrue", 1, |args, _| {
        let array = array(
            args,
            0,
            17040,
            "$allElementsTrue's argument must be an array, but is ",
        )?;
        Ok(Some(RawBsonRef::Boolean(
            items(array).all(|item| is_true(Some(item))),
        )))
    }),
    Operator::fixed("$anyElementTrue", 1, |args, _| {
        let array = array(
            args,
            0,
            17041,
            "$anyElementTrue's argument must be an array, but is ",
        )?;
        Ok(Some(RawBsonRef::Boolean(
            items(array).any(|item| is_true(Some(item))),
        )))
    }),
    Operator::fixed("$setDifference", 2, difference),
    Operator::special("$setEquals", parse_equals),
    Operator::commutative("$setIntersection", intersection),
    Operator::special("$setIsSubset", parse_is_subset),
    Operator::commutative("$setUnion", union),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

fn array<'a>(args: &Arguments<'a>, index: usize, code: u32, message: &str) -> Result<&'a RawArray> {
    match args.get(index) {
        Some(RawBsonRef::Array(array)) => Ok(array),
        other => error(code, format!("{message}{}", type_name(other))),
    }
}

/// The elements, sorted, each once.
fn set<'a>(array: &'a RawArray, env: &Env<'a>) -> Result<Vec<RawBsonRef<'a>>> {
    unique(env.elements(array)?, env)
}

/// The values, sorted, each once.
fn unique<'a>(values: Vec<RawBsonRef<'a>>, env: &Env<'a>) -> Result<Vec<RawBsonRef<'a>>> {
    let mut values = merge_sort::sort(
        values,
        |a, b| env.compare(*a, *b),
        |value| byte_len(*value),
        env.budget,
    )?;
    // As long as comparing each with the one before takes, which may be ended only before.
    env.budget.spend(values.len())?;
    values.dedup_by(|a, b| env.compare(*a, *b).is_eq());
    Ok(values)
}

/// Whether a set holds a value.
fn holds(set: &[RawBsonRef<'_>], value: RawBsonRef<'_>, env: &Env<'_>) -> Result<bool> {
    let looks = set.len().checked_ilog2().unwrap_or(0) as usize + 1;
    env.budget.spend_bytes(looks * byte_len(value))?;
    Ok(set
        .binary_search_by(|known| env.compare(*known, value))
        .is_ok())
}

/// The values that a set holds, or that it does not hold.
fn filtered<'a>(
    values: impl Iterator<Item = RawBsonRef<'a>>,
    set: &[RawBsonRef<'_>],
    held: bool,
    env: &Env<'_>,
) -> Result<Vec<RawBsonRef<'a>>> {
    let mut kept = Vec::new();
    for value in values {
        if holds(set, value, env)? == held {
            kept.push(value);
        }
    }
    Ok(kept)
}

fn difference<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    if args.any_nullish() {
        return Ok(NULL);
    }
    let message = "both operands of $setDifference must be arrays. First argument is of type: ";
    let left = array(args, 0, 17048, message)?;
    let message = "both operands of $setDifference must be arrays. Second argument is of type: ";
    let right = set(array(args, 1, 17049, message)?, env)?;
    // The order of the first operand stays; of equal elements the first does.
    let kept = filtered(env.elements(left)?.into_iter(), &right, false, env)?;
    let kept = kept.into_iter().enumerate().collect();
    let mut kept = merge_sort::sort(
        kept,
        |(_, a), (_, b)| env.compare(*a, *b),
        |(_, value)| byte_len(*value),
        env.budget,
    )?;
    env.budget.spend(kept.len())?;
    kept.dedup_by(|(_, a), (_, b)| env.compare(*a, *b).is_eq());
    let kept = merge_sort::sort(kept, |(i, _), (j, _)| i.cmp(j), |_| 0, env.budget)?;
    env.array_of(kept.into_iter().map(|(_, item)| item))
}

fn not_a_set<T>(code: u32, position: usize, value: Value<'_>) -> Result<T> {
    let found = type_name(value);
    error(
        code,
        format!(
            "All operands of $setEquals must be arrays. {position}-th argument is of type: {found}"
        ),
    )
}

/// A constant that is no array is refused before any document is met.
fn parse_equals(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode> {
    let arguments = parser.arguments("$setEquals", 0, usize::MAX, value)?;
    if arguments.len() < 2 {
        return error(
            17045,
            format!(
                "$setEquals needs at least two arguments had: {}",
                arguments.len()
            ),
        );
    }
    for (index, argument) in arguments.iter().enumerate() {
        let value = match argument {
            ExpressionNode::Constant(constant) => Some(constant.as_raw_bson_ref()),
            ExpressionNode::Missing => None,
            _ => continue,
        };
        if !matches!(value, Some(RawBsonRef::Array(_))) {
            let refused = not_a_set::<()>(5887502, index + 1, value);
            refused.or_else(|error| parser.failed(error))?;
            break;
        }
    }
    let sets: Vec<(usize, ExpressionNode)> = arguments
        .iter()
        .enumerate()
        .filter(|(_, argument)| !argument.is_constant() && argument.is_bound())
        .map(|(index, argument)| (index + 1, argument.clone()))
        .collect();
    if !sets.is_empty() {
        parser.note_bound(|| ExpressionNode::special(BoundSets(sets)));
    }
    let run: Run = equals;
    let call = ExpressionNode::call("$setEquals", run, arguments, u32::MAX);
    Ok(call.taken(Taking::InTurn).not_folded())
}

/// Fails if one of these operands, each with its position, is no array.
#[derive(Debug)]
struct BoundSets(Vec<(usize, ExpressionNode)>);

impl Special for BoundSets {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        for (position, operand) in &self.0 {
            let value = operand.evaluate(env)?;
            if !matches!(value, Some(RawBsonRef::Array(_))) {
                return not_a_set(5887502, *position, value);
            }
        }
        Ok(None)
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        self.0.iter().for_each(|(_, operand)| visit(operand));
    }
}

fn equals<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let mut sets = Vec::with_capacity(args.values.len());
    for (index, value) in args.values.iter().enumerate() {
        let Some(RawBsonRef::Array(array)) = value else {
            return not_a_set(17044, index + 1, *value);
        };
        sets.push(set(array, env)?);
    }
    let same = |a: &[RawBsonRef<'_>], b: &[RawBsonRef<'_>]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| env.compare(*a, *b).is_eq())
    };
    let equal = sets.windows(2).all(|pair| match pair {
        [a, b] => same(a, b),
        _ => true,
    });
    Ok(Some(RawBsonRef::Boolean(equal)))
}

fn intersection<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let mut result: Option<Vec<RawBsonRef<'a>>> = None;
    for (index, value) in args.values.iter().enumerate() {
        if is_nullish(*value) {
            return Ok(NULL);
        }
        let message = "All operands of $setIntersection must be arrays. One argument is of type: ";
        let next = set(array(args, index, 17047, message)?, env)?;
        result = Some(match result {
            None => next,
            Some(known) => {
                // Of equal values those of the smaller set stay.
                let swap = known.len() > next.len();
                let (kept, other) = if swap { (next, known) } else { (known, next) };
                filtered(kept.into_iter(), &other, true, env)?
            }
        });
    }
    env.array_of(result.unwrap_or_default())
}

/// With a constant to look into, MongoDB has other codes, and refuses what is no array before it
/// meets a document.
fn parse_is_subset(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode> {
    let name = "$setIsSubset";
    let arguments = parser.arguments(name, 2, 2, value)?;
    let run: Run = match &arguments[..] {
        [left, right] if !left.is_bound() && right.is_bound() && !right.is_constant() => {
            parser.note_bound(|| ExpressionNode::special(SecondSet(right.clone())));
            match parser.forgets_constants() {
                true => |args, env| is_subset(args, env, 17046),
                false => |args, env| is_subset(args, env, 17310),
            }
        }
        [left, right] if !left.is_fixed() && right.is_constant() => {
            let right = match right {
                ExpressionNode::Constant(right) => Some(right.as_raw_bson_ref()),
                _ => None,
            };
            if !matches!(right, Some(RawBsonRef::Array(_))) {
                let found = type_name(right);
                let message = format!("{SECOND_OPERAND}{found}");
                parser.failed(QueryError::new(ErrorKind::Location(17311), message))?;
            }
            match parser.forgets_constants() {
                true => |args, env| is_subset(args, env, 17046),
                false => |args, env| is_subset(args, env, 17310),
            }
        }
        _ => |args, env| is_subset(args, env, 17046),
    };
    Ok(ExpressionNode::call(name, run, arguments, u32::MAX))
}

/// What a `$setIsSubset` looks into, which has to be an array.
#[derive(Debug)]
struct SecondSet(ExpressionNode);

impl Special for SecondSet {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        match self.0.evaluate(env)? {
            set @ Some(RawBsonRef::Array(_)) => Ok(set),
            found => error(17311, format!("{SECOND_OPERAND}{}", type_name(found))),
        }
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.0);
    }
}

const SECOND_OPERAND: &str =
    "both operands of $setIsSubset must be arrays. Second argument is of type: ";

fn is_subset<'a>(args: &Arguments<'a>, env: &Env<'a>, code: u32) -> Result<Value<'a>> {
    let message = "both operands of $setIsSubset must be arrays. First argument is of type: ";
    let left = array(args, 0, code, message)?;
    let right = set(array(args, 1, 17042, SECOND_OPERAND)?, env)?;
    for item in items(left) {
        if !holds(&right, item, env)? {
            return Ok(Some(RawBsonRef::Boolean(false)));
        }
    }
    Ok(Some(RawBsonRef::Boolean(true)))
}

fn union<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let mut values = Vec::new();
    for (index, value) in args.values.iter().enumerate() {
        if is_nullish(*value) {
            return Ok(NULL);
        }
        let message = "All operands of $setUnion must be arrays. One argument is of type: ";
        env.collect(array(args, index, 17043, message)?, &mut values)?;
    }
    env.array_of(unique(values, env)?)
}
