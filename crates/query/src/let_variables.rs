//! The variables that a command defines for all that it parses: those of its `let`, and the
//! constants of an update.

use std::collections::BTreeSet;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::{Expression, check_variable_name, malformed};
use crate::text::{SearchedIndex, TextContext};

/// Adds the variables of a `let`. They are evaluated once, before any document is read; each may
/// name those before it.
pub fn define(context: &mut Context, variables: &RawDocument) -> Result<(), QueryError> {
    for field in variables.iter() {
        let (name, value) = field.map_err(malformed)?;
        if SERVER_CONSTANTS.contains(&name.as_str()) {
            return Err(QueryError::new(
                ErrorKind::Location(4738901),
                format!("Attempt to set internal constant: {}", name.as_str()),
            ));
        }
        check_variable_name(name.as_str(), true)?;
        // MongoDB optimizes none of it.
        let around = std::mem::replace(&mut context.is_as_written, true);
        // A score that is asked for is one of a document, whatever is searched for.
        let elsewhere = TextContext::new(SearchedIndex::Elsewhere);
        let text = context.text.replace(elsewhere);
        let value = evaluate(value, context);
        context.is_as_written = around;
        context.text = text;
        let value = value?;
        context.variables.push((name.as_str().to_owned(), value));
    }
    Ok(())
}

fn evaluate(value: RawBsonRef<'_>, context: &Context) -> Result<Option<bson::RawBson>, QueryError> {
    let parse = || Expression::parse(value, context);
    // A constant that fails does so where it is evaluated, if it is.
    let expression = context.folding.ignoring_failures(parse)?;
    let mut paths = BTreeSet::new();
    let reads_all = !expression.dependencies(&mut paths);
    if reads_all || !paths.is_empty() {
        return Err(QueryError::new(
            ErrorKind::Location(4890500),
            "Command let Expression tried to access a field, but this is not allowed because \
             Command Let Expressions run before the query examines any documents.",
        ));
    }
    expression.evaluate_owned(&RawDocumentBuf::new())
}

/// Variables of which the server says what they are, once for each command.
const SERVER_CONSTANTS: [&str; 4] = ["NOW", "CLUSTER_TIME", "JS_SCOPE", "IS_MR"];

/// Variables that every expression has.
const BUILT_IN: [&str; 7] = [
    "ROOT",
    "REMOVE",
    "NOW",
    "CLUSTER_TIME",
    "JS_SCOPE",
    "IS_MR",
    "USER_ROLES",
];

/// Adds values that are what they are. They hide variables of the same name.
pub fn define_constants(context: &mut Context, constants: &RawDocument) -> Result<(), QueryError> {
    let mut defined = Vec::new();
    for field in constants.iter() {
        let (name, value) = field.map_err(malformed)?;
        check_variable_name(name.as_str(), false)?;
        if BUILT_IN.contains(&name.as_str()) {
            return Err(QueryError::new(
                ErrorKind::Location(17275),
                format!("'{}' is no variable of users", name.as_str()),
            ));
        }
        defined.push((name.as_str().to_owned(), Some(value.into())));
    }
    context.variables.splice(0..0, defined);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{RawBson, rawdoc};

    fn defined(variables: RawDocumentBuf) -> Result<Vec<Option<RawBson>>, i32> {
        let mut context = Context::default();
        define(&mut context, &variables).map_err(|error| error.kind.code())?;
        let values = context.variables.into_iter().map(|(_, value)| value);
        Ok(values.collect())
    }

    #[test]
    fn a_let_is_evaluated_in_its_order() {
        let variables = rawdoc! {
            "a": { "$add": [1, 2] }, "b": { "$literal": "$x" }, "c": "$$a", "d": "$$REMOVE",
        };
        let values = [
            Some(RawBson::Int32(3)),
            Some(RawBson::String("$x".to_owned())),
            Some(RawBson::Int32(3)),
            None,
        ];
        assert_eq!(defined(variables), Ok(values.to_vec()));
    }

    #[test]
    fn a_let_reads_no_document() {
        for value in ["$a", "$$ROOT", "$$CURRENT.a"] {
            assert_eq!(defined(rawdoc! { "v": value }), Err(4_890_500), "{value}");
        }
        assert_eq!(defined(rawdoc! { "v": "$$w", "w": 1 }), Err(17276));
        assert_eq!(defined(rawdoc! { "A": 1 }), Err(9));
        assert_eq!(defined(rawdoc! { "ROOT": 1 }), Err(9));
        assert_eq!(defined(rawdoc! { "NOW": 1, "A": 1 }), Err(4_738_901));
    }

    #[test]
    fn constants_are_what_they_are() {
        let mut context = Context::default();
        define(&mut context, &rawdoc! { "a": 1 }).unwrap();
        define_constants(&mut context, &rawdoc! { "a": "$x" }).unwrap();
        let first = context.variables.first().unwrap();
        assert_eq!(first.1, Some(RawBson::String("$x".to_owned())));
    }
}
