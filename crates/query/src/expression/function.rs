//! $function: a value that a script works out

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use super::arena::byte_len;
use super::env::Env;
use super::node::{ExpressionNode, Special};
use super::operator::Operator;
use super::parse::{Parser, malformed};
use super::value::{Value, error, type_name};
use crate::error::QueryError;
use crate::javascript::{Input, Script, ahead};

pub(super) const OPERATORS: &[Operator] = &[Operator::special("$function", function)];

#[derive(Debug)]
struct Function {
    script: Arc<Script>,
    arguments: ExpressionNode,
}

fn function(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            31260,
            format!(
                "$function requires an object as an argument, found: {}",
                type_name(Some(value))
            ),
        );
    };
    let [body, arguments, language] = fields(document)?;
    let body = body.map(|body| constant(body, parser)).transpose()?;
    let source = match body {
        None => return error(31261, "The body function must be specified."),
        Some(RawBsonRef::String(source) | RawBsonRef::JavaScriptCode(source)) => source,
        Some(_) => {
            return error(
                31262,
                "The body function must evaluate to type string or code",
            );
        }
    };
    let Some(arguments) = arguments else {
        return error(31263, "The args field must be specified.");
    };
    let arguments = parser.operand(arguments)?;
    match language {
        None => return error(31418, "The lang field must be specified."),
        Some(RawBsonRef::String("js")) => {}
        Some(_) => {
            return error(
                31419,
                "Currently the only supported language specifier is 'js'.",
            );
        }
    }
    Ok(ExpressionNode::special(Function {
        script: Script::function(source, &parser.context.javascript),
        arguments,
    }))
}

/// The value of a constant, which nothing has to be worked out for.
fn constant<'v>(
    value: RawBsonRef<'v>,
    parser: &mut Parser<'_>,
) -> Result<RawBsonRef<'v>, QueryError> {
    let is_expression = match value {
        RawBsonRef::String(text) => text.starts_with('$'),
        RawBsonRef::Document(document) => {
            let mut fields = document.iter().map_while(Result::ok);
            if let (Some((name, literal)), None) = (fields.next(), fields.next())
                && name.as_str() == "$literal"
            {
                return Ok(literal);
            }
            true
        }
        RawBsonRef::Array(_) => true,
        _ => false,
    };
    if is_expression {
        parser.operand(value)?;
        return error(31432, "The body function must be a constant expression");
    }
    Ok(value)
}

/// `body`, `args` and `lang`; others do not matter.
fn fields(document: &RawDocument) -> Result<[Option<RawBsonRef<'_>>; 3], QueryError> {
    let mut fields = [None; 3];
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        let names = ["body", "args", "lang"];
        if let Some(at) = names.iter().position(|known| *known == name.as_str()) {
            fields[at] = Some(value);
        }
    }
    Ok(fields)
}

impl Special for Function {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let Some(RawBsonRef::Array(arguments)) = self.arguments.evaluate(env)? else {
            return error(31266, "The args field must be of type array");
        };
        env.budget.spend_bytes(arguments.as_bytes().len())?;
        let value = ahead::run(&self.script, Input::Arguments(arguments))?;
        env.budget.spend_bytes(byte_len(value.as_raw_bson_ref()))?;
        env.arena.copy(Some(value.as_raw_bson_ref()))
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.arguments);
    }

    fn calls_script(&self) -> bool {
        true
    }

    /// A script may remember what it was called with before.
    fn deterministic(&self) -> bool {
        false
    }
}
