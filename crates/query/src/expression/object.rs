//! Operators over documents, and sizes in bytes

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::path::{self, Path};
use banyan_document::{DocumentWriter, Element, elements, field};
use indexmap::IndexMap;

use super::arena::{ArrayBuilder, byte_len, check_size};
use super::env::Env;
use super::field::FieldPath;
use super::node::{Arguments, ExpressionNode, Special};
use super::operator::Operator;
use super::parse::{NO_LIMIT, Parser, malformed};
use super::value::{Value, describe, error, is_nullish, items, type_name};
use crate::budget::Budget;
use crate::error::{ErrorKind, QueryError};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::special("$_internalFindAllValuesAtPath", find_all_values_at_path),
    Operator::fixed("$arrayToObject", 1, array_to_object),
    Operator::fixed("$binarySize", 1, binary_size),
    Operator::fixed("$bsonSize", 1, bson_size),
    Operator::special("$getField", get_field),
    Operator::asked("$mergeObjects", 0, NO_LIMIT, merge_objects),
    Operator::fixed("$objectToArray", 1, object_to_array),
    Operator::special("$setField", |value, parser| {
        set_field("$setField", value, parser)
    }),
    Operator::special("$unsetField", |value, parser| {
        set_field("$unsetField", value, parser)
    }),
];

type Result<T> = std::result::Result<T, QueryError>;

const NULL: Value<'static> = Some(RawBsonRef::Null);

/// The documents' fields in one: a later value wins and keeps the earlier one's place.
pub(crate) fn merge_documents(
    documents: &[&RawDocument],
    budget: &Budget,
) -> Result<RawDocumentBuf> {
    let mut latest: IndexMap<&str, Element<'_>> = IndexMap::new();
    for element in documents.iter().flat_map(|document| elements(document)) {
        // Looking a name up is several steps.
        budget.spend(4)?;
        latest.insert(element.name(), element);
    }
    let mut writer = DocumentWriter::new();
    for element in latest.values() {
        budget.spend_bytes(element.bytes().len())?;
        writer.append_element(element);
        check_size(writer.len())?;
    }
    Ok(writer.finish())
}

fn merge_objects<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let mut documents = Vec::new();
    let mut take = |value: Value<'a>| match value {
        Some(RawBsonRef::Document(document)) => {
            documents.push(document);
            Ok(())
        }
        value if is_nullish(value) => Ok(()),
        other => error(
            40400,
            format!(
                "$mergeObjects requires object inputs, but input {} is of type {}",
                describe(other),
                type_name(other)
            ),
        ),
    };
    let only = args.values.len() == 1;
    for index in 0..args.values.len() {
        match args.ask(index, env)? {
            // The documents are those of the only argument.
            Some(RawBsonRef::Array(array)) if only => {
                env.elements(array)?
                    .into_iter()
                    .map(Some)
                    .try_for_each(&mut take)?;
            }
            value => take(value)?,
        }
    }
    let merged = merge_documents(&documents, env.budget)?;
    env.arena.copy(Some(RawBsonRef::Document(&merged)))
}

fn object_to_array<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    match args.get(0) {
        value if is_nullish(value) => Ok(NULL),
        Some(RawBsonRef::Document(document)) => {
            let mut builder = ArrayBuilder::new();
            for element in elements(document) {
                env.budget.spend_bytes(element.bytes().len())?;
                builder.writer.push_document();
                builder.writer.append_str("k", element.name());
                builder.writer.append_element_as("v", &element);
                builder.writer.end();
                check_size(builder.writer.len())?;
            }
            env.array(builder)
        }
        other => error(
            40390,
            format!(
                "$objectToArray requires a document input, found: {}",
                type_name(other)
            ),
        ),
    }
}

fn array_to_object<'a>(args: &Arguments<'a>, env: &Env<'a>) -> Result<Value<'a>> {
    let array = match args.get(0) {
        value if is_nullish(value) => return Ok(NULL),
        Some(RawBsonRef::Array(array)) => array,
        other => {
            return error(
                40386,
                format!(
                    "$arrayToObject requires an array input, found: {}",
                    type_name(other)
                ),
            );
        }
    };
    let mut fields: IndexMap<&str, RawBsonRef<'_>> = IndexMap::new();
    for item in items(array) {
        env.budget.spend_bytes(byte_len(item))?;
        env.check_elements(fields.len())?;
        let (name, value) = match item {
            RawBsonRef::Array(pair) => pair_of_array(pair)?,
            RawBsonRef::Document(pair) => pair_of_document(pair)?,
            other => {
                return error(
                    40398,
                    format!(
                        "Unrecognised input type format for $arrayToObject: {}",
                        type_name(Some(other))
                    ),
                );
            }
        };
        if name.contains('\0') {
            return error(4940400, "Key field cannot contain an embedded null byte");
        }
        fields.insert(name, value);
    }
    let mut writer = DocumentWriter::new();
    for (name, value) in fields {
        env.budget.spend_bytes(byte_len(value))?;
        writer.append(name, value);
        check_size(writer.len())?;
    }
    env.document(writer)
}

fn pair_of_array(pair: &bson::RawArray) -> Result<(&str, RawBsonRef<'_>)> {
    let values: Vec<_> = items(pair).take(3).collect();
    match values[..] {
        [RawBsonRef::String(name), value] => Ok((name, value)),
        [other, _] => error(
            40395,
            format!(
                "$arrayToObject requires an array of key-value pairs, where the key must be of \
                 type string. Found key type: {}",
                type_name(Some(other))
            ),
        ),
        _ => error(
            40397,
            format!(
                "$arrayToObject requires an array of size 2 arrays,found array of size: {}",
                items(pair).count()
            ),
        ),
    }
}

fn pair_of_document(pair: &RawDocument) -> Result<(&str, RawBsonRef<'_>)> {
    let count = pair.iter().count();
    if count != 2 {
        return error(
            40392,
            format!(
                "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of \
                 keys:{count}"
            ),
        );
    }
    match (field(pair, "k"), field(pair, "v")) {
        (Some(RawBsonRef::String(name)), Some(value)) => Ok((name, value)),
        (Some(other), Some(_)) => error(
            40394,
            format!(
                "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' \
                 must be of type string. Found type: {}",
                type_name(Some(other))
            ),
        ),
        _ => error(
            40393,
            "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both keys \
             from: ",
        ),
    }
}

fn bson_size<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    match args.get(0) {
        value if is_nullish(value) => Ok(NULL),
        Some(RawBsonRef::Document(document)) => {
            Ok(Some(RawBsonRef::Int32(document.as_bytes().len() as i32)))
        }
        other => error(
            31393,
            format!(
                "$bsonSize requires a document input, found: {}",
                type_name(other)
            ),
        ),
    }
}

fn binary_size<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    let size = match args.get(0) {
        value if is_nullish(value) => return Ok(NULL),
        Some(RawBsonRef::String(text)) => text.len(),
        Some(RawBsonRef::Binary(binary)) => {
            crate::binary::prefix(binary).map_or(0, |prefix| prefix.len()) + binary.bytes.len()
        }
        other => {
            return error(
                51276,
                format!(
                    "$binarySize requires a string or BinData argument, found: {}",
                    type_name(other)
                ),
            );
        }
    };
    Ok(Some(RawBsonRef::Int32(size as i32)))
}

#[derive(Debug)]
struct GetField {
    name: Box<str>,
    input: ExpressionNode,
}

/// The constant name that the field operators take.
fn constant_name(
    operator: &str,
    node: &ExpressionNode,
    parser: &Parser<'_>,
    codes: (u32, u32, u32),
) -> Result<Box<str>> {
    if matches!(
        node,
        ExpressionNode::Field(_)
            | ExpressionNode::Root
            | ExpressionNode::Variable { .. }
            | ExpressionNode::Outer { .. }
    ) {
        return error(
            codes.2,
            format!(
                "{operator} requires 'field' to be a constant, and not a field path: did you mean \
                 {{$literal: ...}}?"
            ),
        );
    }
    let Some(value) = node.as_constant(&parser.context.budget, parser.context.collator.as_ref())
    else {
        return error(
            codes.0,
            format!(
                "{operator} requires 'field' to evaluate to a constant, but got a non-constant \
                 argument"
            ),
        );
    };
    match value {
        RawBsonRef::String(name) => Ok(name.into()),
        // One that is written is an expression.
        RawBsonRef::Array(_) | RawBsonRef::Document(_) => error(
            codes.0,
            format!(
                "{operator} requires 'field' to evaluate to a constant, but got a non-constant \
                 argument"
            ),
        ),
        other => error(
            codes.1,
            format!(
                "{operator} requires 'field' to evaluate to type String, but got {}",
                type_name(Some(other))
            ),
        ),
    }
}

fn get_field(value: RawBsonRef<'_>, parser: &mut Parser<'_>) -> Result<ExpressionNode> {
    let long_form = match value {
        RawBsonRef::Document(document) => {
            let first = document.iter().next().and_then(std::result::Result::ok);
            let is_operator = first.is_some_and(|(name, _)| name.as_str().starts_with('$'));
            (!is_operator).then_some(document)
        }
        _ => None,
    };
    let (mut name, mut input) = (None, ExpressionNode::Root);
    match long_form {
        None => name = Some(parser.operand_as_it_is(value)?),
        Some(document) => {
            let mut given = false;
            for element in document.iter() {
                let (option, value) = element.map_err(malformed)?;
                match option.as_str() {
                    "field" => name = Some(parser.operand_as_it_is(value)?),
                    "input" => {
                        input = parser.operand_as_it_is(value)?;
                        given = true;
                    }
                    other => {
                        return error(
                            3041701,
                            format!("$getField found an unknown argument: {other}"),
                        );
                    }
                }
            }
            if !given && name.is_some() {
                return error(3041703, "$getField requires 'input' to be specified");
            }
        }
    }
    let Some(name) = name else {
        return error(3041702, "$getField requires 'field' to be specified");
    };
    let name = constant_name("$getField", &name, parser, (5654601, 5654602, 5654600))?;
    Ok(ExpressionNode::special(GetField { name, input }))
}

impl Special for GetField {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        match self.input.evaluate(env)? {
            Some(RawBsonRef::Document(document)) => Ok(field(document, &self.name)),
            value @ Some(_) if is_nullish(value) => Ok(NULL),
            _ => Ok(None),
        }
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.input);
    }
}

/// All values that a path stands for, as a `distinct` meets them: arrays on the way and at the end
/// stand for their items.
#[derive(Debug)]
struct FindAllValuesAtPath {
    path: Path,
    /// What is read of the document.
    first: ExpressionNode,
}

fn find_all_values_at_path(value: RawBsonRef<'_>, _: &mut Parser<'_>) -> Result<ExpressionNode> {
    let RawBsonRef::String(text) = value else {
        return Err(QueryError::new(
            ErrorKind::TypeMismatch,
            "$_internalFindAllValuesAtPath takes the name of a path",
        ));
    };
    let checked = FieldPath::parse(text)?;
    let path = Path::parse(text).or_else(|invalid| error(40352, invalid.to_string()))?;
    let first = ExpressionNode::Field(FieldPath::parse(checked.first())?);
    Ok(ExpressionNode::special(FindAllValuesAtPath { path, first }))
}

impl Special for FindAllValuesAtPath {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        let mut builder = ArrayBuilder::new();
        let mut spent = Ok(());
        path::each_value(env.root(), self.path.parts(), &mut |value| {
            if spent.is_ok() {
                spent = env.budget.spend_bytes(byte_len(value));
                builder.push(value);
            }
        });
        spent?;
        env.array(builder)
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.first);
    }
}

#[derive(Debug)]
struct SetField {
    operator: &'static str,
    name: Box<str>,
    input: ExpressionNode,
    value: ExpressionNode,
}

fn set_field(
    operator: &'static str,
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<ExpressionNode> {
    let RawBsonRef::Document(document) = value else {
        return error(
            4161100,
            format!("{operator} only supports an object as its argument"),
        );
    };
    let (mut name, mut input, mut value) = (None, None, None);
    for element in document.iter() {
        let (option, operand) = element.map_err(malformed)?;
        let slot = match option.as_str() {
            "field" => &mut name,
            "input" => &mut input,
            "value" if operator == "$setField" => &mut value,
            other => {
                return error(
                    4161101,
                    format!("{operator} found an unknown argument: {other}"),
                );
            }
        };
        *slot = Some(parser.operand_as_it_is(operand)?);
    }
    let missing = |code: u32, what: &str| {
        error(
            code,
            format!("{operator} requires '{what}' to be specified"),
        )
    };
    let Some(name) = name else {
        return missing(4161102, "field");
    };
    let value = match value {
        Some(value) => value,
        None if operator == "$unsetField" => ExpressionNode::Missing,
        None => return missing(4161103, "value"),
    };
    let Some(input) = input else {
        return missing(4161109, "input");
    };
    let name = constant_name(operator, &name, parser, (4161106, 4161107, 4161108))?;
    Ok(ExpressionNode::special(SetField {
        operator,
        name,
        input,
        value,
    }))
}

impl Special for SetField {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>> {
        let input = self.input.evaluate(env)?;
        if is_nullish(input) {
            return Ok(NULL);
        }
        let Some(RawBsonRef::Document(document)) = input else {
            return error(
                4161105,
                format!(
                    "{} requires 'input' to evaluate to type Object",
                    self.operator
                ),
            );
        };
        let value = self.value.evaluate(env)?;
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 32);
        let mut found = false;
        env.budget.spend_bytes(document.as_bytes().len())?;
        for element in elements(document) {
            if element.name() != &*self.name {
                writer.append_element(&element);
            } else if !found && let Some(value) = value {
                writer.append(&self.name, value);
                found = true;
            }
        }
        if !found && let Some(value) = value {
            writer.append(&self.name, value);
        }
        env.document(writer)
    }

    fn folds(&self) -> bool {
        false
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        visit(&self.input);
        visit(&self.value);
    }
}
