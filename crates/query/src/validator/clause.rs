//! A validator clause by clause, as it was written.

use banyan_document::element::elements;
use banyan_document::path::Path;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::outcome::{CodeName, ends_operation};
use super::schema::SchemaNode;
use super::source::{branches, never, operators, written};
use super::test::{Test, Words};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::value::{describe, is_true};
use crate::filter::{self, Filter};

#[derive(Debug)]
pub(super) enum Clause {
    And(Vec<Clause>),
    Or(Vec<Clause>),
    Nor(Vec<Clause>),
    Not(Box<Clause>),
    Test(Box<Test>),
    Schema(Box<SchemaNode>),
    /// `$expr` and what is one.
    Expression {
        name: &'static str,
        specified_as: RawDocumentBuf,
        expression: Option<Box<Expression>>,
        filter: Box<Filter>,
    },
    /// `$all` of nothing.
    Never {
        name: &'static str,
        specified_as: RawDocumentBuf,
    },
    /// `$alwaysTrue` and `$alwaysFalse`, of which MongoDB has nothing to say.
    Untold {
        holds: bool,
        shown: String,
    },
}

impl Clause {
    pub fn parse(filter: &RawDocument, context: &Context) -> Result<Clause, QueryError> {
        let mut clauses = Vec::new();
        for element in elements(filter) {
            let (name, value) = (element.name(), element.value());
            let each = || {
                branches(value)
                    .map(|branch| Clause::parse(branch, context))
                    .collect::<Result<Vec<_>, _>>()
            };
            match name {
                "$comment" => {}
                "$and" => clauses.push(Clause::And(each()?)),
                "$or" => clauses.push(Clause::Or(each()?)),
                "$nor" => clauses.push(Clause::Nor(each()?)),
                "$jsonSchema" => {
                    if let RawBsonRef::Document(schema) = value {
                        let schema = SchemaNode::parse(schema, true, context)?;
                        clauses.push(Clause::Schema(Box::new(schema)));
                    }
                }
                "$alwaysTrue" | "$alwaysFalse" => {
                    let shown = format!("{{ {name}: {} }}", describe(Some(value)));
                    let holds = name == "$alwaysTrue";
                    clauses.push(Clause::Untold { holds, shown });
                }
                "$expr" => clauses.push(expression("$expr", value, context)?),
                "$sampleRate" => clauses.push(expression("$sampleRate", value, context)?),
                _ => condition(name, value, context, &mut clauses)?,
            }
        }
        Ok(one_or_all(clauses))
    }

    /// `None`: an expression fails.
    fn holds(&self, document: &RawDocument) -> Result<Option<bool>, QueryError> {
        let not = |outcome: Option<bool>| outcome.map(|holds| !holds);
        match self {
            Clause::And(clauses) => until(clauses, document, false),
            Clause::Or(clauses) => until(clauses, document, true),
            Clause::Nor(clauses) => until(clauses, document, true).map(not),
            Clause::Not(clause) => clause.holds(document).map(not),
            Clause::Test(test) => test.holds(document).map(Some),
            Clause::Schema(schema) => schema.accepts(RawBsonRef::Document(document)).map(Some),
            Clause::Expression { filter, .. } => match filter.try_matches(document) {
                Err(error) if !ends_operation(error.kind) => Ok(None),
                outcome => outcome.map(Some),
            },
            Clause::Never { .. } => Ok(Some(false)),
            Clause::Untold { holds, .. } => Ok(Some(*holds)),
        }
    }

    /// Why it does not hold; `inverted`: why it does, where it should not.
    pub fn explain(
        &self,
        document: &RawDocument,
        inverted: bool,
        name: CodeName<'_>,
    ) -> Result<RawDocumentBuf, QueryError> {
        let several = |operator, clauses, listed_hold| {
            explain_several(operator, clauses, document, listed_hold, name)
        };
        match self {
            Clause::And(clauses) => several("$and", clauses, inverted),
            Clause::Or(clauses) => several("$or", clauses, inverted),
            Clause::Nor(clauses) => several("$nor", clauses, !inverted),
            Clause::Not(clause) => Ok(rawdoc! {
                "operatorName": "$not", "details": clause.explain(document, !inverted, name)?,
            }),
            Clause::Test(test) => test.explain(document, inverted),
            Clause::Schema(schema) => schema.explain_document(document, inverted),
            Clause::Expression {
                name: operator,
                specified_as,
                expression,
                filter,
            } => {
                let mut details = rawdoc! {
                    "operatorName": *operator, "specifiedAs": specified_as.clone(),
                };
                let result = match expression {
                    Some(expression) => expression.evaluate_owned(document),
                    None => filter.try_matches(document).map(|holds| Some(holds.into())),
                };
                match result {
                    Ok(result) => {
                        let reason = match inverted {
                            true => "expression did match",
                            false => "expression did not match",
                        };
                        details.append(cstr!("reason"), reason);
                        if let Some(result) = result {
                            details.append(cstr!("expressionResult"), result);
                        }
                    }
                    Err(error) if ends_operation(error.kind) => return Err(error),
                    Err(error) => {
                        let reason = "failed to evaluate aggregation expression";
                        details.append(cstr!("reason"), reason);
                        let code = error.kind.code();
                        let failure = rawdoc! {
                            "code": code, "codeName": name(code), "errmsg": error.message,
                        };
                        details.append(cstr!("details"), failure);
                    }
                }
                Ok(details)
            }
            Clause::Never { name, specified_as } => Ok(never(name, specified_as)),
            Clause::Untold { shown, .. } => Err(QueryError::new(
                ErrorKind::Location(4_994_600),
                format!(
                    "Cannot generate validation error details: no annotation found for expression \
                     {shown}"
                ),
            )),
        }
    }
}

/// Whether one of the clauses is so, or else all are the other way.
fn until(
    clauses: &[Clause],
    document: &RawDocument,
    decisive: bool,
) -> Result<Option<bool>, QueryError> {
    for clause in clauses {
        match clause.holds(document)? {
            Some(holds) if holds != decisive => {}
            outcome => return Ok(outcome),
        }
    }
    Ok(Some(!decisive))
}

/// Lists the clauses that hold, or those that do not, and those that fail.
fn explain_several(
    operator: &str,
    clauses: &[Clause],
    document: &RawDocument,
    listed_hold: bool,
    name: CodeName<'_>,
) -> Result<RawDocumentBuf, QueryError> {
    let mut listed = RawArrayBuf::new();
    let outcomes = clauses.iter().map(|clause| clause.holds(document));
    let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
    // What comes behind a failure in an alternative was not looked at.
    let lists_all = operator == "$or" && !listed_hold && outcomes.contains(&None);
    for (index, (clause, outcome)) in clauses.iter().zip(outcomes).enumerate() {
        if let Clause::Untold { .. } = clause {
            return clause.explain(document, listed_hold, name);
        }
        if outcome == Some(!listed_hold) && !lists_all {
            continue;
        }
        let mut line = rawdoc! { "index": i32::try_from(index).unwrap_or(i32::MAX) };
        if let Clause::Schema(schema) = clause {
            schema.append_names(&mut line);
        }
        let details = clause.explain(document, listed_hold, name)?;
        line.append(cstr!("details"), details);
        listed.push(line);
    }
    let mut details = rawdoc! { "operatorName": operator };
    match listed_hold {
        true => details.append(cstr!("clausesSatisfied"), listed),
        false => details.append(cstr!("clausesNotSatisfied"), listed),
    }
    Ok(details)
}

fn one_or_all(mut clauses: Vec<Clause>) -> Clause {
    match clauses.len() {
        1 => clauses.remove(0),
        _ => Clause::And(clauses),
    }
}

fn expression(
    name: &'static str,
    value: RawBsonRef<'_>,
    context: &Context,
) -> Result<Clause, QueryError> {
    let specified_as = written(name, value)?;
    let expression = match name {
        "$expr" => Some(Box::new(Expression::parse(value, context)?)),
        _ => None,
    };
    Ok(Clause::Expression {
        name,
        filter: Box::new(Filter::parse(&specified_as, context)?),
        specified_as,
        expression,
    })
}

/// What is asked of one field.
fn condition(
    field: &str,
    value: RawBsonRef<'_>,
    context: &Context,
    clauses: &mut Vec<Clause>,
) -> Result<(), QueryError> {
    let Some(condition) = operators(value) else {
        let operator = match value {
            RawBsonRef::RegularExpression(_) => "$regex",
            _ => "$eq",
        };
        let specified_as = written(field, value)?;
        clauses.push(test(operator, field, specified_as, false, context)?);
        return Ok(());
    };
    for element in elements(condition) {
        let (operator, operand) = (element.name(), element.value());
        let specified_as = || {
            let condition = written(operator, operand)?;
            written(field, RawBsonRef::Document(&condition))
        };
        match operator {
            "$options" => {}
            "$not" => {
                let mut inner = Vec::new();
                self::condition(field, operand, context, &mut inner)?;
                clauses.push(Clause::Not(Box::new(one_or_all(inner))));
            }
            // Its options stand beside it.
            "$regex" => {
                let specified_as = written(field, value)?;
                clauses.push(test(operator, field, specified_as, false, context)?);
            }
            "$all" if operand.as_array().is_some_and(|all| all.is_empty()) => {
                clauses.push(Clause::Never {
                    name: "$all",
                    specified_as: specified_as()?,
                });
            }
            "$exists" => {
                let for_missing = !is_true(Some(operand));
                clauses.push(test(
                    operator,
                    field,
                    specified_as()?,
                    for_missing,
                    context,
                )?);
            }
            _ => clauses.push(test(operator, field, specified_as()?, false, context)?),
        }
    }
    Ok(())
}

fn test(
    operator: &str,
    field: &str,
    specified_as: RawDocumentBuf,
    for_missing: bool,
    context: &Context,
) -> Result<Clause, QueryError> {
    let Some(words) = Words::of(operator) else {
        let message = format!("{operator} has no words for what fails it");
        return Err(QueryError::new(ErrorKind::InternalError, message));
    };
    let path: Path = filter::path_of(field)?;
    let test = Test::parse(words, path, specified_as, for_missing, context)?;
    Ok(Clause::Test(Box::new(test)))
}
