//! Operators over arrays: positions, slices, joins, order

use std::sync::LazyLock;

use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef};

use banyan_document::Number;

use super::arena::{ArrayBuilder, byte_len, check_size};
use super::env::Env;
use super::node::{Arguments, ExpressionNode, Run, Special, Taking};
use super::operator::{Form, NamedCodes, Operands, Operator, Parameter, Reading, required};
use super::parse::{Parser, malformed};
use super::value::{Value, describe, error, is_nullish, items, type_name, wanted_number};
use crate::error::{ErrorKind, QueryError};
use crate::item_order::{ItemOrder, is_descending};
use crate::merge_sort;
use crate::n_values;

const N_PARAMETERS: &[Parameter] = &[required("n"), required("input")];

const fn n_values(name: &'static str, run: Run) -> Operator {
    Operator {
        name,
        form: Form::Named {
            operands: Operands::InTurnLater,
            parameters: N_PARAMETERS,
            run,
            reading: Reading::AsWritten,
            codes: NamedCodes {
                not_object: n_values::not_object(name),
                unknown: n_values::UNKNOWN,
                missing: &[n_values::MISSING_N, n_values::MISSING_INPUT],
            },
        },
    }
}

pub(super) const OPERATORS: &[Operator] = &[
    Operator::fixed("$arrayElemAt", 2, array_elem_at),
    Operator::associative("$concatArrays", concat_arrays),
    Operator::fixed("$first", 1, |args, _| edge(args, false)),
    n_values("$firstN", |args, env| {
        let (array, n) = n_and_input(args)?;
        env.array_of(items(array).take(n))
    }),
    Operator::fixed("$in", 2, contains),
    Operator::special("$indexOfArray", parse_index_of_array),
    Operator::fixed("$isArray", 1, |args, _| {
        Ok(Some(RawBsonRef::Boolean(matches!(
            args.get(0),
            Some(RawBsonRef::Array(_))
        ))))
    }),
    Operator::fixed("$last", 1, |args, _| edge(args, true)),
    n_values("$lastN", |args, env| {
        let (array, n) = n_and_input(args)?;
        let length = items(array).count();
        env.array_of(items(array).skip(length.saturating_sub(n)))
    }),
    n_values("$maxN", |args, env| extreme_n(args, env, true)),
    n_values("$minN", |args, env| extreme_n(args, env, false)),
    Operator::asked("$range", 2, 3, range),
    Operator::fixed("$reverseArray", 1, reverse),
    Operator::fixed("$size", 1, size),
    Operator::asked("$slice", 2, 3, slice),
    Operator::special("$sortArray", sort_array),
    Operator::special("$zip", zip),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

/// A bound or a position as a 32-bit integer, or the error `codes` for another type and for
/// another number.
fn int32(value: Value<'_>, codes: (u32, u32), type_message: &str, message: &str) -> Result<i32> {
    match value.and_then(Number::from_raw) {
        None => error(codes.0, format!("{type_message}{}", type_name(value))),
        Some(number) => match number.to_i32_exact() {
            Some(v) => Ok(v),
            None => error(codes.1, format!("{message}{}", describe(value))),
        },
    }
}

fn array_elem_at<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    if args.any_nullish() {
        return Ok(NULL);
    }
    let Some(RawBsonRef::Array(array)) = args.get(0) else {
        return error(
            28689,
            format!(
                "$arrayElemAt's first argument must be an array, but is {}",
                type_name(args.get(0))
            ),
        );
    };
    let index = int32(
        args.get(1),
        (28690, 28691),
        "$arrayElemAt's second argument must be a numeric value, but is ",
        "$arrayElemAt's second argument must be representable as a 32-bit integer: ",
    )?;
    Ok(match usize::try_from(index) {
        Ok(index) => items(array).nth(index),
        Err(_) => {
            let length = items(array).count();
            let back = index.unsigned_abs() as usize;
            length
                .checked_sub(back)
                .and_then(|index| items(array).nth(index))
        }
    })
}

fn edge<'a>(args: &Arguments<'a>, last: bool) -> Result<Value<'a>> {
    match args.get(0) {
        value if is_nullish(value) => Ok(NULL),
        Some(RawBsonRef::Array(array)) => Ok(if last {
            items(array).last()
        } else {
            items(array).next()
        }),
        other => error(
            28689,
            format!(
                "{}'s argument must be an array, but is {}",
                args.operator,
                type_name(other)
            ),
        ),
    }
}

static NOTHING: LazyLock<RawArrayBuf> = LazyLock::new(RawArrayBuf::new);

fn n_and_input<'a>(args: &Arguments<'a>) -> Result<(&'a RawArray, usize)> {
    let n = wanted_number(args.get(0))?;
    match args.get(1) {
        Some(RawBsonRef::Array(array)) => Ok((array, n)),
        // Only n was to be looked at.
        None if args.values.len() < 2 => Ok((&**NOTHING, n)),
        _ => error(5788200, "Input must be an array"),
    }
}

fn extreme_n<'a>(args: &Arguments<'a>, env: &Env<'a>, greatest: bool) -> Result<Value<'a>> {
    let (array, n) = n_and_input(args)?;
    let mut values = env.elements(array)?;
    values.retain(|value| !is_nullish(Some(*value)));
    let mut values = sorted(values, greatest, env)?;
    values.truncate(n);
    if greatest {
        // The last of equal ones comes first.
        let equal = |a: &RawBsonRef<'_>, b: &RawBsonRef<'_>| env.compare(*a, *b).is_eq();
        values.chunk_by_mut(equal).for_each(<[_]>::reverse);
    }
    env.array_of(values)
}

/// A first operand that can be no array is refused before any document is met, and without one the
/// result is known.
fn parse_index_of_array(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode> {
    let arguments = parser.arguments("$indexOfArray", 2, 4, value)?;
    let are_fixed = arguments.iter().all(ExpressionNode::is_fixed);
    let array = arguments
        .first()
        .filter(|first| !are_fixed && first.is_constant());
    match array {
        None => {}
        Some(ExpressionNode::Constant(array)) if matches!(**array, RawBson::Array(_)) => {}
        Some(ExpressionNode::Constant(array)) if !is_nullish(Some(array.as_raw_bson_ref())) => {
            let found = type_name(Some(array.as_raw_bson_ref()));
            let message = format!(
                "First operand of $indexOfArray must be an array. First argument is of type: \
                 {found}"
            );
            parser.failed(QueryError::new(ErrorKind::Location(50809), message))?;
        }
        Some(_) => return Ok(ExpressionNode::constant(RawBson::Null)),
    }
    let run: Run = index_of_array;
    let call = ExpressionNode::call("$indexOfArray", run, arguments, u32::MAX);
    Ok(call.taken(Taking::Asked))
}

fn concat_arrays<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let mut builder = ArrayBuilder::new();
    for value in &args.values {
        if is_nullish(*value) {
            return Ok(NULL);
        }
        let Some(RawBsonRef::Array(array)) = value else {
            return error(
                28664,
                format!(
                    "$concatArrays only supports arrays, not {}",
                    type_name(*value)
                ),
            );
        };
        for element in banyan_document::items(array) {
            env.budget.spend_bytes(element.bytes().len())?;
            builder.writer.push_element(&element);
            check_size(builder.writer.len())?;
        }
    }
    env.array(builder)
}

fn contains<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let Some(RawBsonRef::Array(array)) = args.get(1) else {
        return error(
            40081,
            format!(
                "$in requires an array as a second argument, found: {}",
                type_name(args.get(1))
            ),
        );
    };
    let found = position(env, items(array), args.get(0))?;
    Ok(Some(RawBsonRef::Boolean(found.is_some())))
}

/// Where among the values one is.
fn position<'a>(
    env: &Env<'_>,
    values: impl Iterator<Item = RawBsonRef<'a>>,
    wanted: Value<'_>,
) -> Result<Option<usize>> {
    let bytes = wanted.map_or(0, byte_len);
    for (index, value) in values.enumerate() {
        env.budget.spend_bytes(bytes.min(byte_len(value)))?;
        if env.compare_values(wanted, Some(value)).is_eq() {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// The optional start and end of the `$indexOf` operators, the one before the other.
pub(super) fn search_range<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<(usize, usize)> {
    let bound = |index: usize, what: &str, default: usize| -> Result<usize> {
        if args.values.len() <= index {
            return Ok(default);
        }
        let value = args.with(index, env)?.get(index);
        let number = value.and_then(Number::from_raw);
        match number.and_then(Number::to_i32_exact) {
            None => error(
                40096,
                format!(
                    "{} requires an integral {what} index, found a value of type: {}, with value: \
                     {}",
                    args.operator,
                    type_name(value),
                    describe(value)
                ),
            ),
            Some(v) => match usize::try_from(v) {
                Ok(v) => Ok(v),
                Err(_) => error(
                    40097,
                    format!(
                        "{} requires a nonnegative {what} index, found: {v}",
                        args.operator
                    ),
                ),
            },
        }
    };
    Ok((bound(2, "starting", 0)?, bound(3, "ending", usize::MAX)?))
}

fn index_of_array<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let array = match args.with(0, env)?.get(0) {
        value if is_nullish(value) => return Ok(NULL),
        Some(RawBsonRef::Array(array)) => array,
        other => {
            return error(
                40090,
                format!(
                    "$indexOfArray requires an array as a first argument, found: {}",
                    type_name(other)
                ),
            );
        }
    };
    let (start, end) = search_range(args, env)?;
    let window = items(array).take(end).skip(start);
    let found = position(env, window, args.with(1, env)?.get(1))?;
    Ok(Some(RawBsonRef::Int32(
        found.map_or(-1, |index| (start + index) as i32),
    )))
}

/// About what an item of a range takes: its type, its position and the number.
const RANGE_ITEM_BYTES: usize = 12;
/// What is made room for at once: a long range may be ended on the way.
const RANGE_ROOM_MAX: usize = 1024 * 1024;

fn range<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let args = args.with(0, env)?.with(1, env)?;
    let start = int32(
        args.get(0),
        (34443, 34444),
        "$range requires a numeric starting value, found value of type: ",
        "$range requires a starting value that can be represented as a 32-bit integer, found \
         value: ",
    )?;
    let end = int32(
        args.get(1),
        (34445, 34446),
        "$range requires a numeric ending value, found value of type: ",
        "$range requires an ending value that can be represented as a 32-bit integer, found \
         value: ",
    )?;
    let step = match args.values.len() {
        3 => int32(
            args.with(2, env)?.get(2),
            (34447, 34448),
            "$range requires a numeric step value, found value of type:",
            "$range requires a step value that can be represented as a 32-bit integer, found \
             value: ",
        )?,
        _ => 1,
    };
    if step == 0 {
        return error(34449, "$range requires a non-zero step value");
    }
    // Each number takes at least seven bytes; more than this is no document.
    let (start, end, step) = (i64::from(start), i64::from(end), i64::from(step));
    let count = (end - start) / step;
    if count > 4 * 1024 * 1024 {
        return Err(QueryError::new(
            crate::error::ErrorKind::ExceededMemoryLimit,
            "$range would use too much memory",
        ));
    }
    let count = usize::try_from(count).unwrap_or_default();
    let mut builder = ArrayBuilder::with_capacity((count * RANGE_ITEM_BYTES).min(RANGE_ROOM_MAX));
    let mut current = start;
    while (step > 0 && current < end) || (step < 0 && current > end) {
        env.budget.spend(1)?;
        builder.push(RawBsonRef::Int32(current as i32));
        current += step;
    }
    env.array(builder)
}

fn reverse<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    match args.get(0) {
        value if is_nullish(value) => Ok(NULL),
        Some(RawBsonRef::Array(array)) => env.array_of(env.elements(array)?.into_iter().rev()),
        other => error(
            34435,
            format!(
                "The argument to $reverseArray must be an array, but was of type: {}",
                type_name(other)
            ),
        ),
    }
}

fn size<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    match args.get(0) {
        Some(RawBsonRef::Array(array)) => Ok(Some(RawBsonRef::Int32(items(array).count() as i32))),
        other => error(
            17124,
            format!(
                "The argument to $size must be an array, but was of type: {}",
                type_name(other)
            ),
        ),
    }
}

fn slice<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let args = args.with(0, env)?.with(1, env)?;
    if is_nullish(args.get(0)) || is_nullish(args.get(1)) {
        return Ok(NULL);
    }
    let Some(RawBsonRef::Array(array)) = args.get(0) else {
        return error(
            28724,
            format!(
                "First argument to $slice must be an array, but is of type: {}",
                type_name(args.get(0))
            ),
        );
    };
    let position = int32(
        args.get(1),
        (28725, 28726),
        "Second argument to $slice must be a numeric value, but is of type: ",
        "Second argument to $slice can't be represented as a 32-bit integer: ",
    )?;
    let length = items(array).count();
    let from_end = |n: i32| length.saturating_sub(n.unsigned_abs() as usize);
    if args.values.len() == 2 {
        return match usize::try_from(position) {
            Ok(count) => env.array_of(items(array).take(count)),
            Err(_) => env.array_of(items(array).skip(from_end(position))),
        };
    }
    let args = args.with(2, env)?;
    if is_nullish(args.get(2)) {
        return Ok(NULL);
    }
    let count = int32(
        args.get(2),
        (28727, 28728),
        "Third argument to $slice must be numeric, but is of type: ",
        "Third argument to $slice can't be represented as a 32-bit integer: ",
    )?;
    if count <= 0 {
        return error(
            28729,
            format!("Third argument to $slice must be positive: {count}"),
        );
    }
    let start = usize::try_from(position).unwrap_or_else(|_| from_end(position));
    env.array_of(items(array).skip(start).take(count as usize))
}

/// How $sortArray orders: the values themselves, or the documents by fields.
#[derive(Debug)]
enum ArrayOrder {
    Values { descending: bool },
    Documents(ItemOrder),
}

#[derive(Debug)]
struct SortArray {
    input: ExpressionNode,
    order: ArrayOrder,
}

fn sort_array(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode> {
    let RawBsonRef::Document(document) = value else {
        return error(
            2942500,
            format!(
                "$sortArray requires an object as an argument, found: {}",
                type_name(Some(value))
            ),
        );
    };
    let (mut input, mut order) = (None, None);
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        match (name.as_str(), value) {
            ("input", value) => input = Some(parser.operand(value)?),
            ("sortBy", RawBsonRef::Document(pattern)) => {
                let collator = parser.context.collator.as_ref();
                let fields = ItemOrder::parse(pattern, collator)
                    .or_else(|why| error(2942505, format!("BadValue: {why}")))?;
                order = Some(ArrayOrder::Documents(fields));
            }
            ("sortBy", value) => {
                if Number::from_raw(value).is_none() {
                    return error(
                        2942507,
                        "The $sort is invalid: use 1/-1 to sort the whole element, or {field:1/-1} \
                         to sort embedded fields",
                    );
                }
                let Some(descending) = is_descending(value) else {
                    return error(2942506, "The $sort element value must be either 1 or -1");
                };
                order = Some(ArrayOrder::Values { descending });
            }
            (other, _) => {
                return error(
                    2942501,
                    format!("$sortArray found an unknown argument: {other}"),
                );
            }
        }
    }
    let Some(input) = input else {
        return error(2942502, "$sortArray requires 'input' to be specified");
    };
    let Some(order) = order else {
        return error(2942503, "$sortArray requires 'sortBy' to be specified");
    };
    Ok(ExpressionNode::special(SortArray { input, order }))
}

impl Special for SortArray {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        let input = self.input.evaluate(env)?;
        if is_nullish(input) {
            return Ok(NULL);
        }
        let Some(RawBsonRef::Array(array)) = input else {
            return error(
                2942504,
                format!(
                    "The input argument to $sortArray must be an array, but was of type: {}",
                    type_name(input)
                ),
            );
        };
        match &self.order {
            ArrayOrder::Values { descending } => {
                env.array_of(sorted(env.elements(array)?, *descending, env)?)
            }
            ArrayOrder::Documents(order) => {
                let mut keyed = Vec::new();
                let mut bytes = 0;
                for value in env.elements(array)? {
                    env.budget.spend_bytes(byte_len(value))?;
                    let key = order.key(value);
                    bytes += size_of_val(&*key);
                    check_size(bytes)?;
                    keyed.push((key, value));
                }
                let weight = |at: &usize| keyed[*at].0.iter().map(|part| byte_len(*part)).sum();
                let sorted = merge_sort::sort(
                    (0..keyed.len()).collect(),
                    |a, b| order.compare(&keyed[*a].0, &keyed[*b].0),
                    weight,
                    env.budget,
                )?;
                env.array_of(sorted.into_iter().map(|at| keyed[at].1))
            }
        }
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.input);
    }
}

/// Values in order.
fn sorted<'a>(
    values: Vec<RawBsonRef<'a>>,
    descending: bool,
    env: &Env<'a>,
) -> Result<Vec<RawBsonRef<'a>>> {
    let order = |a: &RawBsonRef<'_>, b: &RawBsonRef<'_>| match descending {
        true => env.compare(*b, *a),
        false => env.compare(*a, *b),
    };
    merge_sort::sort(values, order, |value| byte_len(*value), env.budget)
}

#[derive(Debug)]
struct Zip {
    inputs: Vec<ExpressionNode>,
    defaults: Vec<ExpressionNode>,
    longest: bool,
}

fn zip(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode> {
    let RawBsonRef::Document(document) = value else {
        return error(
            34460,
            format!(
                "$zip only supports an object as an argument, found {}",
                type_name(Some(value))
            ),
        );
    };
    let (mut inputs, mut defaults, mut longest) = (Vec::new(), Vec::new(), false);
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        match (name.as_str(), value) {
            ("inputs", RawBsonRef::Array(array)) => inputs = parser.operands(array)?,
            ("inputs", other) => {
                return error(
                    34461,
                    format!(
                        "inputs must be an array of expressions, found {}",
                        type_name(Some(other))
                    ),
                );
            }
            ("defaults", RawBsonRef::Array(array)) => defaults = parser.operands(array)?,
            ("defaults", other) => {
                return error(
                    34462,
                    format!(
                        "defaults must be an array of expressions, found {}",
                        type_name(Some(other))
                    ),
                );
            }
            ("useLongestLength", RawBsonRef::Boolean(value)) => longest = value,
            ("useLongestLength", other) => {
                return error(
                    34463,
                    format!(
                        "useLongestLength must be a bool, found {}",
                        type_name(Some(other))
                    ),
                );
            }
            (other, _) => {
                return error(34464, format!("$zip found an unknown argument: {other}"));
            }
        }
    }
    if inputs.is_empty() {
        return error(34465, "$zip requires at least one input array");
    }
    if !defaults.is_empty() && !longest {
        return error(
            34466,
            "cannot specify defaults unless useLongestLength is true",
        );
    }
    if !defaults.is_empty() && defaults.len() != inputs.len() {
        return error(34467, "defaults and inputs must have the same length");
    }
    Ok(ExpressionNode::special(Zip {
        inputs,
        defaults,
        longest,
    }))
}

impl Special for Zip {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        let mut inputs: Vec<Vec<RawBsonRef<'a>>> = Vec::with_capacity(self.inputs.len());
        let mut total = 0;
        for node in &self.inputs {
            match node.evaluate(env)? {
                value if is_nullish(value) => return Ok(NULL),
                Some(RawBsonRef::Array(array)) => {
                    let elements = env.elements(array)?;
                    total += elements.len();
                    env.check_elements(total)?;
                    inputs.push(elements);
                }
                other => {
                    return error(
                        34468,
                        format!(
                            "$zip found a non-array expression in input: {}",
                            describe(other)
                        ),
                    );
                }
            }
        }
        let lengths = inputs.iter().map(Vec::len);
        // Where all are as long, nobody asks for what stands in place of what is not there.
        let is_even = lengths.clone().max() == lengths.clone().min();
        let mut defaults = Vec::with_capacity(inputs.len());
        for index in 0..inputs.len() {
            let value = match self.defaults.get(index).filter(|_| !is_even) {
                Some(node) => node.evaluate(env)?,
                None => None,
            };
            defaults.push(value.unwrap_or(RawBsonRef::Null));
        }
        let length = if self.longest {
            lengths.max()
        } else {
            lengths.min()
        };
        let mut builder = ArrayBuilder::new();
        for row in 0..length.unwrap_or(0) {
            builder.writer.push_array();
            for (input, default) in inputs.iter().zip(&defaults) {
                let value = input.get(row).copied().unwrap_or(*default);
                env.budget.spend_bytes(byte_len(value))?;
                builder.push(value);
            }
            builder.writer.end();
            check_size(builder.writer.len())?;
        }
        env.array(builder)
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        self.inputs.iter().chain(&self.defaults).for_each(visit);
    }
}
