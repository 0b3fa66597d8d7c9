//! From an update document to its tree.

use std::collections::HashSet;

use banyan_document::MAX_STORED_DEPTH;
use banyan_document::depth::is_too_deep_to_store;
use banyan_document::element::{elements, items};
use banyan_document::kind;
use banyan_document::path::Path;
use bson::{RawBsonRef, RawDocument};

use super::array_filter::ArrayFilter;
use super::kind::{Kind, Modifiers, too_deep};
use super::modifier::Modifier;
use super::operator::{Form, Operator, rename_target, rename_to};
use super::rename::Rename;
use super::show;
use super::tree::{Fields, identifier};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::metadata::AskedMetadata;
use crate::pipeline::Pipeline;
use crate::text::{SearchedIndex, TextContext};

pub(super) fn parse(
    update: RawBsonRef<'_>,
    array_filters: &[&RawDocument],
    context: &Context,
) -> Result<Kind, QueryError> {
    match update {
        RawBsonRef::Array(_) if !array_filters.is_empty() => {
            ArrayFilter::parse_all(array_filters, context)?;
            let message = "arrayFilters may not be specified for pipeline-style updates";
            Err(QueryError::new(ErrorKind::FailedToParse, message))
        }
        RawBsonRef::Array(array) => {
            let mut stages = Vec::new();
            for item in items(array) {
                match item.value() {
                    RawBsonRef::Document(stage) => stages.push(stage),
                    _ => {
                        let message = "Each element of the 'pipeline' array must be an object";
                        return Err(QueryError::new(ErrorKind::TypeMismatch, message));
                    }
                }
            }
            pipeline(&stages, context)
        }
        RawBsonRef::Document(document) => match elements(document).next() {
            Some(first) if first.name().starts_with('$') => {
                modifiers(document, array_filters, context).map(Kind::Modifiers)
            }
            _ => {
                // They name nothing in a replacement, but are read all the same.
                ArrayFilter::parse_all(array_filters, context)?;
                replacement(document)
            }
        },
        _ => {
            let message = "Update argument must be either an object or an array";
            Err(QueryError::new(ErrorKind::FailedToParse, message))
        }
    }
}

fn replacement(document: &RawDocument) -> Result<Kind, QueryError> {
    if is_too_deep_to_store(document) {
        return Err(too_deep());
    }
    Ok(Kind::Replacement(document.to_owned()))
}

/// The stages that keep one document one document.
const STAGES: [&str; 6] = [
    "$addFields",
    "$set",
    "$project",
    "$unset",
    "$replaceRoot",
    "$replaceWith",
];

fn pipeline(stages: &[&RawDocument], context: &Context) -> Result<Kind, QueryError> {
    let context = Context {
        is_as_written: true,
        metadata_may_be_missing: true,
        // What its statement searches for is no matter of the pipeline.
        text: Some(TextContext::new(SearchedIndex::Missing)),
        metadata: AskedMetadata::default(),
        ..context.clone()
    };
    let pipeline = Pipeline::parse(stages, &context)?;
    for stage in stages {
        let name = elements(stage).next().map_or("", |first| first.name());
        if !STAGES.contains(&name) {
            let message = format!("{name} is not allowed to be used within an update");
            return Err(QueryError::new(ErrorKind::InvalidOptions, message));
        }
    }
    Ok(Kind::Pipeline(Box::new(pipeline)))
}

fn modifiers(
    document: &RawDocument,
    array_filters: &[&RawDocument],
    context: &Context,
) -> Result<Modifiers, QueryError> {
    let filters = ArrayFilter::parse_all(array_filters, context)?;
    let mut builder = Builder {
        modifiers: Modifiers {
            fields: Fields::default(),
            filters,
            positional: false,
            renames: Vec::new(),
            wholes: Vec::new(),
            may_deepen: false,
            budget: context.budget.clone(),
            collator: context.collator.clone(),
        },
        used: HashSet::new(),
    };
    for element in elements(document) {
        let Some(operator) = Operator::by_name(element.name()) else {
            let message = format!(
                "Unknown modifier: {}. Expected a valid update modifier or pipeline-style update \
                 specified as an array",
                element.name()
            );
            return Err(QueryError::new(ErrorKind::FailedToParse, message));
        };
        let RawBsonRef::Document(fields) = element.value() else {
            let message = format!(
                "Modifiers operate on fields but we found type {} instead. For example: {{$mod: \
                 {{<field>: ...}}}} not {{{}}}",
                kind::name(&element.value()),
                show::element(&element)
            );
            return Err(QueryError::new(ErrorKind::FailedToParse, message));
        };
        for field in elements(fields) {
            context.budget.spend_part()?;
            let (path, operand) = (field.name(), field.value());
            match operator.form {
                Form::Here(read) => {
                    let parts = split(path)?;
                    builder.insert(&parts, path, read(path, operand, context)?)?;
                }
                // The path that is left is taken before it is looked where to.
                Form::Rename => {
                    builder.insert(&split(path)?, path, Modifier::RenameFrom)?;
                    let target = rename_target(path, operand)?;
                    let parts = split(target)?;
                    builder.insert(&parts, target, rename_to(path, target)?)?;
                }
            }
        }
    }
    for (_, filter) in builder.modifiers.filters.iter() {
        if !builder.used.contains(&filter.identifier) {
            let message = format!(
                "The array filter for identifier '{}' was not used in the update {}",
                filter.identifier,
                show::document(document)
            );
            return Err(QueryError::new(ErrorKind::FailedToParse, message));
        }
    }
    builder.modifiers.fields.sort();
    Ok(builder.modifiers)
}

struct Builder {
    modifiers: Modifiers,
    /// The identifiers that paths name.
    used: HashSet<String>,
}

impl Builder {
    fn insert(&mut self, parts: &[&str], path: &str, modifier: Modifier) -> Result<(), QueryError> {
        // The operand is judged before.
        if parts
            .first()
            .is_some_and(|first| identifier(first).is_some())
        {
            let message = format!(
                "Cannot have array filter identifier (i.e. '$[<id>]') element in the first \
                 position in path '{path}'"
            );
            return Err(QueryError::new(ErrorKind::BadValue, message));
        }
        self.modifiers.positional |= parts.contains(&"$");
        if parts.len() + modifier.operand_depth() >= MAX_STORED_DEPTH {
            self.modifiers.may_deepen = true;
        }
        if modifier.leaves_a_whole() {
            self.modifiers.wholes.push(path.to_string());
        } else if matches!(modifier, Modifier::Push(_)) {
            self.modifiers.wholes.push(format!("{path}.."));
        } else if parts.iter().any(|part| part.starts_with("$[")) {
            self.modifiers.wholes.push(format!("{path}."));
        }
        if let (Modifier::RenameTo(from), Ok(to)) = (&modifier, Path::parse(path)) {
            self.modifiers.renames.push(Rename {
                from: from.clone(),
                to,
            });
        }
        let filters = &self.modifiers.filters;
        let mut use_filter = |identifier: &str| {
            if !identifier.is_empty() && filters.get(identifier).is_none() {
                let message =
                    format!("No array filter found for identifier '{identifier}' in path '{path}'");
                return Err(QueryError::new(ErrorKind::BadValue, message));
            }
            self.used.insert(identifier.to_string());
            Ok(())
        };
        let fields = &mut self.modifiers.fields;
        fields.insert(parts, path, modifier, &mut use_filter)
    }
}

/// More parts than a document can have levels cannot be written.
const PARTS_MAX: usize = 200;

fn split(path: &str) -> Result<Vec<&str>, QueryError> {
    let error = |kind, message: String| Err(QueryError::new(kind, message));
    if path.is_empty() {
        return error(
            ErrorKind::EmptyFieldName,
            "An empty update path is not valid.".into(),
        );
    }
    let parts: Vec<&str> = path.split('.').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return error(
            ErrorKind::EmptyFieldName,
            format!("The update path '{path}' contains an empty field name, which is not allowed."),
        );
    }
    if parts.len() > PARTS_MAX {
        return Err(too_deep());
    }
    let first = parts[0];
    if first == "$" {
        return error(
            ErrorKind::BadValue,
            format!(
                "Cannot have positional (i.e. '$') element in the first position in path '{path}'"
            ),
        );
    }
    if parts.iter().filter(|part| **part == "$").count() > 1 {
        return error(
            ErrorKind::BadValue,
            format!("Too many positional (i.e. '$') elements found in path '{path}'"),
        );
    }
    Ok(parts)
}

pub(super) fn dollar_prefixed(name: &str, path: &str) -> QueryError {
    let message = format!(
        "The dollar ($) prefixed field '{name}' in '{path}' is not allowed in the context of an \
         update's replacement document. Consider using an aggregation pipeline with $replaceWith."
    );
    QueryError::new(ErrorKind::DollarPrefixedFieldName, message)
}
