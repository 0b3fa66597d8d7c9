//! From a projection document to the tree.

use banyan_document::element::{elements, items};
use banyan_document::kind;
use banyan_document::number::Number;
use banyan_document::path::Path;
use bson::{RawBsonRef, RawDocument};

use super::tree::{Fields, Mode, Projection, Rule, Slice, is_simple};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::describe;
use crate::expression::{Expression, FieldPath, is_operator};
use crate::filter;

fn error<T>(code: u32, message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::Location(code), message))
}

pub(super) fn parse(
    projection: &RawDocument,
    filter: Option<&RawDocument>,
    context: &Context,
) -> Result<Projection, QueryError> {
    let mut parser = Parser {
        context,
        fields: Fields::default(),
        mode: None,
        id: None,
        positional: false,
        has_position: !filter.is_some_and(filter::has_expression),
        elem_match: false,
        slices: false,
    };
    for element in elements(projection) {
        parser.field(element.name(), element.name(), element.value())?;
    }
    Ok(parser.finish())
}

/// Behind the position at which a document was found a path may not go on.
pub(crate) fn check_middle(path: &str) -> Result<(), QueryError> {
    if !path.contains(".$.") {
        return Ok(());
    }
    error(
        31394,
        "As of 4.4, it's illegal to specify positional operator in the middle of a path.Positional \
         projection may only be used at the end, for example: a.b.$. If the query previously used a \
         form like a.b.$.d, remove the parts following the '$' and the results will be equivalent.",
    )
}

struct Parser<'c> {
    context: &'c Context,
    fields: Fields,
    /// Set by the first field that decides it.
    mode: Option<Mode>,
    /// What `_id: 0` or `_id: 1` says. Alone among fields it may differ from the mode.
    id: Option<bool>,
    positional: bool,
    /// Whether the filter can say at which position it matched: not by an expression.
    has_position: bool,
    elem_match: bool,
    slices: bool,
}

impl Parser<'_> {
    /// `name` is what the field is called where it stands: the path, or the end of it.
    fn field(&mut self, path: &str, name: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        self.context.budget.spend_part()?;
        check_middle(path)?;
        if let Some(above) = path.strip_suffix(".$") {
            return self.positional(path, above, value);
        }
        FieldPath::parse(path)?;
        match value {
            RawBsonRef::Document(document) => self.document(path, document),
            RawBsonRef::Boolean(flag) => self.flag(path, name, flag),
            other => match Number::from_raw(other) {
                Some(number) => self.flag(path, name, !number.is_zero()),
                None => self.expression(path, other),
            },
        }
    }

    fn flag(&mut self, path: &str, name: &str, include: bool) -> Result<(), QueryError> {
        if path == "_id" {
            self.id = Some(include);
            return self.fields.insert(path, self.rule_of(include));
        }
        self.fields.insert(path, self.rule_of(include))?;
        let mode = if include {
            Mode::Inclusion
        } else {
            Mode::Exclusion
        };
        self.decide(mode, || match mode {
            Mode::Exclusion => (
                31254,
                format!("Cannot do exclusion on field {name} in inclusion projection"),
            ),
            Mode::Inclusion => (
                31253,
                format!("Cannot do inclusion on field {name} in exclusion projection"),
            ),
        })
    }

    fn rule_of(&self, include: bool) -> Rule {
        if include {
            Rule::Include
        } else {
            Rule::Exclude
        }
    }

    fn decide(
        &mut self,
        mode: Mode,
        otherwise: impl FnOnce() -> (u32, String),
    ) -> Result<(), QueryError> {
        match self.mode {
            Some(decided) if decided != mode => {
                let (code, message) = otherwise();
                error(code, message)
            }
            _ => {
                self.mode = Some(mode);
                Ok(())
            }
        }
    }

    /// `{path: {...}}`: an operator, or fields below the path.
    fn document(&mut self, path: &str, document: &RawDocument) -> Result<(), QueryError> {
        let Some(first) = elements(document).next() else {
            return error(
                51270,
                "An empty sub-projection is not a valid value. Found empty object at path",
            );
        };
        match first.name() {
            // Only a document of one field is an operator: any other holds fields.
            name if name.starts_with('$') && elements(document).nth(1).is_some() => {
                FieldPath::parse(name).map(drop)
            }
            "$slice" => self.slice(path, first.value(), document),
            "$elemMatch" => self.elem_match(path, first.value(), document),
            "$meta" => self.meta(path, document),
            name if name.starts_with('$') => {
                if !is_operator(name) {
                    return error(31325, format!("Unknown expression {name}"));
                }
                self.expression(path, RawBsonRef::Document(document))
            }
            _ => {
                if let Some(Rule::Positional) = self.fields.at(path) {
                    return error(31250, format!("Path collision at {path}"));
                }
                for element in elements(document) {
                    let name = element.name();
                    if name.is_empty() {
                        FieldPath::parse(name)?;
                    }
                    self.field(&format!("{path}.{name}"), name, element.value())?;
                }
                Ok(())
            }
        }
    }

    fn expression(&mut self, path: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        if let (RawBsonRef::Document(_), Some(Mode::Exclusion)) = (value, self.mode) {
            let message = "Cannot use expression other than $meta in exclusion projection";
            return error(31252, message);
        }
        let expression = Expression::parse(value, self.context)?;
        self.fields
            .insert(path, Rule::Expression(Box::new(expression)))?;
        self.decide(Mode::Inclusion, || {
            let shown = format!("{path}: {}", describe(Some(value)));
            (
                31310,
                format!("Cannot use an expression {shown} in an exclusion projection"),
            )
        })
    }

    fn meta(&mut self, path: &str, document: &RawDocument) -> Result<(), QueryError> {
        let value = RawBsonRef::Document(document);
        let meta = Expression::parse(value, self.context)?;
        self.fields.insert(path, Rule::Meta(Box::new(meta)))
    }

    /// A number or `[skip, limit]` cuts the array in place; anything else is the expression.
    fn slice(
        &mut self,
        path: &str,
        value: RawBsonRef<'_>,
        document: &RawDocument,
    ) -> Result<(), QueryError> {
        let Some(slice) = slice_of(value) else {
            if self.mode == Some(Mode::Exclusion) {
                return self.expression(path, RawBsonRef::Document(document));
            }
            let expression = self.expression(path, RawBsonRef::Document(document));
            return expression.map_err(|error| explain_slice(value, error));
        };
        self.slices = true;
        let excludes = self.mode == Some(Mode::Exclusion);
        let inserted = self.fields.insert(path, Rule::Slice(slice));
        match value {
            // What is wrong may yet be right as the expression.
            _ if excludes => inserted.map_err(|_| {
                let message = "Cannot use expression other than $meta in exclusion projection";
                QueryError::new(ErrorKind::Location(31252), message)
            }),
            RawBsonRef::Array(_) => inserted,
            _ => inserted.map_err(|error| {
                let message = format!(
                    "Invalid $slice syntax. The given syntax {{ $slice: {} }} did not match the \
                     find() syntax because :: {}",
                    describe(Some(value)),
                    error.message
                );
                QueryError::new(ErrorKind::Location(28667), message)
            }),
        }
    }

    fn elem_match(
        &mut self,
        path: &str,
        value: RawBsonRef<'_>,
        document: &RawDocument,
    ) -> Result<(), QueryError> {
        let RawBsonRef::Document(_) = value else {
            let found = kind::name(&value);
            return error(
                31274,
                format!("elemMatch: Invalid argument, object required, but got {found}"),
            );
        };
        if self.positional {
            return error(31255, "Cannot specify positional operator and $elemMatch.");
        }
        if path.contains('.') {
            return error(31275, "Cannot use $elemMatch projection on a nested field.");
        }
        let filter = filter::element_matcher(document, self.context)?;
        self.elem_match = true;
        self.fields.insert(path, Rule::ElemMatch(Box::new(filter)))
    }

    fn positional(
        &mut self,
        path: &str,
        above: &str,
        value: RawBsonRef<'_>,
    ) -> Result<(), QueryError> {
        FieldPath::parse(above)?;
        let include = match value {
            RawBsonRef::Boolean(flag) => flag,
            other => match Number::from_raw(other) {
                Some(number) => !number.is_zero(),
                None if matches!(other, RawBsonRef::Document(_)) => {
                    return error(
                        31271,
                        "positional projection cannot be used with an expression or sub object",
                    );
                }
                None => {
                    return error(31308, "positional projection cannot be used with a literal");
                }
            },
        };
        if !include {
            return error(31395, "positional projection cannot be used with exclusion");
        }
        if self.positional {
            return error(
                31276,
                "Cannot specify more than one positional projection per query.",
            );
        }
        if self.elem_match {
            return error(31256, "Cannot specify positional operator and $elemMatch.");
        }
        if !self.has_position {
            return Err(QueryError::new(
                ErrorKind::QueryFeatureNotAllowed,
                "$expr is not allowed in this context",
            ));
        }
        self.positional = true;
        self.fields.insert(above, Rule::Positional)?;
        self.decide(Mode::Inclusion, || {
            (
                31253,
                format!("Cannot do inclusion on field {path} in exclusion projection"),
            )
        })
    }

    fn finish(mut self) -> Projection {
        let mode = self.mode.unwrap_or(match self.id {
            Some(true) => Mode::Inclusion,
            _ if self.elem_match && !self.slices => Mode::Inclusion,
            _ => Mode::Exclusion,
        });
        // The document's own `_id` stays unless it is excluded by name.
        let named = self.fields.rule("_id").is_some();
        match mode {
            Mode::Inclusion if !named => {
                self.fields.rules.push_first("_id".into(), Rule::Include);
            }
            Mode::Exclusion if self.id == Some(true) => {
                self.fields.rules.retain(|name, _| name != "_id");
            }
            _ => {}
        }
        let mut rules = self.fields.rules.iter();
        let is_plain = |rule: &Rule| matches!(rule, Rule::Include | Rule::Exclude);
        Projection {
            keeps_fields: mode == Mode::Inclusion && rules.all(|(_, rule)| is_plain(rule)),
            keeps_paths: mode == Mode::Inclusion && is_simple(&self.fields),
            fields: self.fields,
            mode,
            positional: self.positional,
        }
    }
}

/// What was given is neither form of `$slice`: says why not.
fn explain_slice(value: RawBsonRef<'_>, error: QueryError) -> QueryError {
    let why = match value {
        RawBsonRef::Array(array) if !matches!(items(array).count(), 2 | 3) => {
            "Location31272: $slice array argument should be of form [skip, limit]"
        }
        RawBsonRef::Array(_) => return error,
        _ => "Location31273: $slice only supports numbers and [skip, limit] arrays",
    };
    let given = match value {
        RawBsonRef::Array(array) => {
            let shown: Vec<_> = items(array)
                .map(|item| describe(Some(item.value())))
                .collect();
            format!("[ {} ]", shown.join(", "))
        }
        other => describe(Some(other)),
    };
    let message = format!(
        "Invalid $slice syntax. The given syntax {{ $slice: {given} }} did not match the find() \
         syntax because :: {why} :: The given syntax did not match the expression $slice syntax. \
         :: caused by :: {}",
        error.message
    );
    QueryError::new(error.kind, message)
}

fn slice_of(value: RawBsonRef<'_>) -> Option<Slice> {
    let whole = |value| Number::from_raw(value).map(Number::to_i64_rounded);
    if let Some(count) = whole(value) {
        return Some(Slice {
            skip: count,
            limit: None,
        });
    }
    let mut items = items(value.as_array()?);
    let skip = whole(items.next()?.value())?;
    let limit = whole(items.next()?.value())?;
    (items.next().is_none() && limit > 0).then_some(Slice {
        skip,
        limit: Some(limit),
    })
}

/// What MongoDB tells of a path where it meets another one, of what it has from there on: the last field
/// that they share as well, unless that is the first one of the path.
pub(crate) fn remaining<'p>(path: &str, from_there: &'p str) -> &'p str {
    match from_there.split_once('.') {
        Some((_, below)) if from_there == path => below,
        _ => from_there,
    }
}

impl Fields {
    fn insert(&mut self, path: &str, rule: Rule) -> Result<(), QueryError> {
        let Ok(parsed) = Path::parse(path) else {
            return error(40352, "FieldPath cannot be constructed with empty string");
        };
        let mut fields = self;
        let (last, above) = match parsed.parts() {
            [above @ .., last] => (last, above),
            [] => return Ok(()),
        };
        for (depth, part) in above.iter().enumerate() {
            fields.note(&rule);
            let known = fields.rules.place(part);
            let at = known.unwrap_or_else(|| {
                let below = Rule::Fields(Fields::default());
                fields.rules.push(part.clone(), below)
            });
            match fields.rules.value_mut(at) {
                Rule::Fields(inner) => fields = inner,
                _ => {
                    let rest = parsed.parts()[depth..].join(".");
                    let rest = remaining(path, &rest);
                    return error(
                        31249,
                        format!("Path collision at {path} remaining portion {rest}"),
                    );
                }
            }
        }
        fields.note(&rule);
        if fields.rule(last).is_some() {
            return error(31250, format!("Path collision at {path}"));
        }
        fields.rules.push(last.clone(), rule);
        Ok(())
    }

    /// What is asked of a path.
    fn at(&self, path: &str) -> Option<&Rule> {
        match path.split_once('.') {
            None => self.rule(path),
            Some((first, rest)) => match self.rule(first)? {
                Rule::Fields(inner) => inner.at(rest),
                _ => None,
            },
        }
    }

    /// Something of the kind comes here or below.
    fn note(&mut self, rule: &Rule) {
        self.positional |= matches!(rule, Rule::Positional);
        self.computes |= matches!(rule, Rule::Expression(_) | Rule::Meta(_));
        self.adds |= self.computes || matches!(rule, Rule::ElemMatch(_));
    }
}
