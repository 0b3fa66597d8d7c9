//! Specifications of projections.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::Number;

use super::projector::{Mode, Projector};
use super::tree::{Action, Collision, Tree};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{describe, error, show_document};
use crate::expression::{self, FieldPath, Parser, is_operator};
use crate::metadata;
use crate::pipeline::stage::Stage;
use crate::projection;
use crate::text::TEXT_SCORE_FIELD;

pub(in crate::pipeline) fn parse_project(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(spec) = value else {
        return error(15969, "$project specification must be an object");
    };
    let projector =
        Projector::parse_project(spec, context).map_err(|e| prefixed("Invalid $project", e))?;
    out.push(Arc::new(projector));
    Ok(())
}

pub(in crate::pipeline) fn parse_add_fields(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    parse_addition("$addFields", value, context, out)
}

pub(in crate::pipeline) fn parse_set(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    parse_addition("$set", value, context, out)
}

fn parse_addition(
    name: &'static str,
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(spec) = value else {
        let found = crate::expression::value::type_name(Some(value));
        return error(
            40272,
            format!("{name} specification stage must be an object, got {found}"),
        );
    };
    let projector = Projector::parse_add_fields(spec, context)
        .map_err(|e| prefixed(&format!("Invalid {name}"), e))?;
    out.push(Arc::new(Projector { name, ..projector }));
    Ok(())
}

pub(in crate::pipeline) fn parse_unset(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let mut tree = Tree::default();
    let mut add = |path: &str| -> Result<(), QueryError> {
        check_positions(path)?;
        // MongoDB makes a projection of it, in which a NUL ends the name and begins an empty one.
        let path = FieldPath::parse(if path.contains('\0') { "" } else { path })?;
        tree.insert(path.parts(), Action::Exclude)
            .map_err(|c| collision(&path, &c))
    };
    match value {
        RawBsonRef::String(path) => add(path).map_err(|e| prefixed("Invalid $unset", e))?,
        RawBsonRef::Array(array) if !array.is_empty() => {
            for item in crate::expression::value::items(array) {
                let RawBsonRef::String(path) = item else {
                    return error(
                        31120,
                        "$unset specification must be a string or an array containing only string \
                         values",
                    );
                };
                add(path).map_err(|e| prefixed("Invalid $unset", e))?;
            }
        }
        RawBsonRef::Array(_) => {
            return error(
                31119,
                "$unset specification must be a string or an array with at least one field",
            );
        }
        _ => return error(31002, "$unset specification must be a string or an array"),
    }
    out.push(Arc::new(Projector {
        name: "$project",
        mode: Mode::Exclusion,
        tree,
        reads: 0,
        budget: context.budget.clone(),
        collator: context.collator.clone(),
    }));
    Ok(())
}

/// Nothing tells at which position of an array a document was found.
fn check_positions(path: &str) -> Result<(), QueryError> {
    projection::check_middle(path)?;
    match path.ends_with(".$") {
        true => error(
            31324,
            "Cannot use positional projection in aggregation projection",
        ),
        false => Ok(()),
    }
}

fn prefixed(prefix: &str, error: QueryError) -> QueryError {
    QueryError::new(
        error.kind,
        format!("{prefix} :: caused by :: {}", error.message),
    )
}

fn collision(path: &FieldPath, collision: &Collision) -> QueryError {
    if collision.remaining.is_empty() {
        return QueryError::new(
            ErrorKind::Location(31250),
            format!("Path collision at {path}"),
        );
    }
    let remaining = projection::remaining(&path.to_string(), &collision.remaining).to_owned();
    QueryError::new(
        ErrorKind::Location(31249),
        format!("Path collision at {path} remaining portion {remaining}"),
    )
}

/// Collects a `$project` specification before it is known which way it goes.
struct Builder<'c> {
    parser: Parser<'c>,
    tree: Tree,
    mode: Option<Mode>,
    id: Option<bool>,
}

impl Builder<'_> {
    fn fields(&mut self, prefix: &str, spec: &RawDocument) -> Result<(), QueryError> {
        for (name, value) in spec.iter().map_while(Result::ok) {
            let path = match prefix {
                "" => name.as_str().to_string(),
                _ => format!("{prefix}.{name}"),
            };
            if name.as_str().is_empty() {
                FieldPath::parse(name.as_str())?;
            }
            self.field(&path, name.as_str(), value)?;
        }
        Ok(())
    }

    /// `name` is what the field is called where it stands: the path, or the end of it.
    fn field(&mut self, path: &str, name: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        check_positions(path)?;
        if let RawBsonRef::Document(document) = value {
            let first = document.iter().next().and_then(Result::ok);
            match first.map(|(name, _)| name.as_str()) {
                None => {
                    return error(
                        51270,
                        "An empty sub-projection is not a valid value. Found empty object at path",
                    );
                }
                Some("$elemMatch") if document.iter().nth(1).is_none() => {
                    FieldPath::parse(path)?;
                    return Err(QueryError::new(
                        ErrorKind::InvalidPipelineOperator,
                        "Cannot use $elemMatch in this context",
                    ));
                }
                Some(name) if name.starts_with('$') => {
                    // Only a document of one field is an operator: any other holds fields.
                    if document.iter().nth(1).is_some() {
                        return FieldPath::parse(name).map(drop);
                    }
                    if !is_operator(name) {
                        return error(31325, format!("Unknown expression {name}"));
                    }
                    return self.compute(path, value);
                }
                Some(_) => {
                    FieldPath::parse(path)?;
                    return self.fields(path, document);
                }
            }
        }
        let included = match value {
            RawBsonRef::Boolean(v) => v,
            other => match Number::from_raw(other) {
                Some(number) => !number.is_zero(),
                None => return self.compute(path, other),
            },
        };
        let parsed = FieldPath::parse(path)?;
        let (action, wanted) = match included {
            true => (Action::Include, Mode::Inclusion),
            false => (Action::Exclude, Mode::Exclusion),
        };
        self.insert(&parsed, action)?;
        if path == "_id" {
            self.id = Some(included);
            return Ok(());
        }
        match (self.mode, wanted) {
            (Some(Mode::Inclusion), Mode::Exclusion) => error(
                31254,
                format!("Cannot do exclusion on field {name} in inclusion projection"),
            ),
            (Some(Mode::Exclusion), Mode::Inclusion) => error(
                31253,
                format!("Cannot do inclusion on field {name} in exclusion projection"),
            ),
            _ => {
                self.mode = Some(wanted);
                Ok(())
            }
        }
    }

    fn compute(&mut self, path: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        let parsed = FieldPath::parse(path)?;
        if let (RawBsonRef::Document(_), Some(Mode::Exclusion)) = (value, self.mode) {
            return error(
                31252,
                "Cannot use expression other than $meta in exclusion projection",
            );
        }
        let node = self.parser.operand_at(parsed.parts().len(), value)?;
        self.insert(&parsed, Action::Compute(node, value.into()))?;
        if self.mode == Some(Mode::Exclusion) {
            return error(
                31310,
                format!(
                    "Cannot use an expression {path}: {} in an exclusion projection",
                    describe(Some(value))
                ),
            );
        }
        self.mode = Some(Mode::Inclusion);
        Ok(())
    }

    fn insert(&mut self, path: &FieldPath, action: Action) -> Result<(), QueryError> {
        self.tree
            .insert(path.parts(), action)
            .map_err(|c| collision(path, &c))
    }
}

impl Projector {
    /// A `$project` specification.
    pub fn parse_project(spec: &RawDocument, context: &Context) -> Result<Projector, QueryError> {
        if spec.is_empty() {
            return error(
                51272,
                "projection specification must have at least one field",
            );
        }
        let mut builder = Builder {
            parser: expression::parser(context),
            tree: Tree::default(),
            mode: None,
            id: None,
        };
        builder.fields("", spec)?;
        let reads = builder.parser.reads();
        let mut tree = builder.tree;
        let mode = builder.mode.unwrap_or(match builder.id {
            Some(false) => Mode::Exclusion,
            Some(true) | None => Mode::Inclusion,
        });
        // Scores go with documents until they are dropped.
        if mode == Mode::Inclusion && context.text.is_some() {
            tree.push(TEXT_SCORE_FIELD.into(), Action::Include);
        }
        if mode == Mode::Inclusion && context.names_metadata {
            for name in metadata::field_names() {
                tree.push(name.into(), Action::Include);
            }
        }
        // `_id` goes with an inclusion unless it is turned away.
        if mode == Mode::Inclusion && tree.fields.place("_id").is_none() {
            tree.include_first("_id".into());
        }
        if mode == Mode::Exclusion {
            tree.fields
                .retain(|_, action| !matches!(action, Action::Include));
        }
        Ok(Projector {
            name: "$project",
            mode,
            tree,
            reads,
            budget: context.budget.clone(),
            collator: context.collator.clone(),
        })
    }

    /// An `$addFields` specification.
    pub fn parse_add_fields(
        spec: &RawDocument,
        context: &Context,
    ) -> Result<Projector, QueryError> {
        let mut parser = expression::parser(context);
        // Paths that are in each other's way are told before any expression is read.
        let mut paths = Tree::default();
        for (name, value) in spec.iter().map_while(Result::ok) {
            each_added(name.as_str(), value, &mut |path, _| {
                let parsed = FieldPath::parse(path)?;
                insert_added(&mut paths, path, &parsed, Action::Include, spec)
            })?;
        }
        let mut tree = Tree::default();
        for (name, value) in spec.iter().map_while(Result::ok) {
            each_added(name.as_str(), value, &mut |path, value| {
                let parsed = FieldPath::parse(path)?;
                let node = parser.operand_at(parsed.parts().len(), value)?;
                let action = Action::Compute(node, value.into());
                insert_added(&mut tree, path, &parsed, action, spec)
            })?;
        }
        Ok(Projector {
            name: "$addFields",
            mode: Mode::Addition,
            tree,
            reads: parser.reads(),
            budget: context.budget.clone(),
            collator: context.collator.clone(),
        })
    }
}

/// Hands on the paths that `$addFields` gives values to, and what is written for them.
fn each_added(
    path: &str,
    value: RawBsonRef<'_>,
    take: &mut dyn FnMut(&str, RawBsonRef<'_>) -> Result<(), QueryError>,
) -> Result<(), QueryError> {
    if let RawBsonRef::Document(document) = value {
        FieldPath::parse(path)?;
        let mut names = document.iter().map_while(Result::ok).map(|(name, _)| name);
        let first = names.next().map(|name| name.as_str());
        let is_alone = names.next().is_none();
        match first {
            Some(name) if !name.starts_with('$') || !is_alone => {
                for (name, value) in document.iter().map_while(Result::ok) {
                    if name.as_str().starts_with('$') && !is_alone {
                        return error(
                            40181,
                            "an expression specification must contain exactly one field, the name \
                             of the expression",
                        );
                    }
                    if name.as_str().contains('.') {
                        return error(
                            40183,
                            format!("cannot use dotted field name '{name}' in a sub object"),
                        );
                    }
                    each_added(&format!("{path}.{name}"), value, take)?;
                }
                return Ok(());
            }
            None => {
                return error(
                    40180,
                    format!(
                        "an empty object is not a valid value. Found empty object at path {path}"
                    ),
                );
            }
            Some(_) => {}
        }
    }
    take(path, value)
}

fn insert_added(
    tree: &mut Tree,
    path: &str,
    parsed: &FieldPath,
    action: Action,
    spec: &RawDocument,
) -> Result<(), QueryError> {
    tree.insert(parsed.parts(), action).map_err(|_| {
        let outer = path.rsplit_once('.').map_or(path, |(outer, _)| outer);
        QueryError::new(
            ErrorKind::Location(40176),
            format!(
                "specification contains two conflicting paths. Cannot specify both '{path}' and \
                 '{outer}': {}",
                show_document(spec)
            ),
        )
    })
}
