//! $project, $unset, $addFields and $set: a tree of what happens to each field

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::path::position;
use banyan_document::{Collator, DocumentWriter, Element, Number, elements, items};

use super::ahead::{Ahead, Scripted};
use super::dependencies::Needed;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{check_depth, describe, error, show_document};
use crate::expression::{
    self, Arena, Env, ExpressionNode, FieldPath, Parser, check_size, is_operator,
};
use crate::metadata::{self, is_metadata};
use crate::names::Named;
use crate::text::TEXT_SCORE_FIELD;
use crate::variables::Variables;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Inclusion,
    Exclusion,
    /// All fields stay; some are set.
    Addition,
}

/// What `$project` or `$addFields` does to a document.
#[derive(Debug)]
pub struct Projector {
    /// As the user wrote it.
    name: &'static str,
    mode: Mode,
    tree: Tree,
    /// How many fields of a document it reads to compute others.
    reads: u32,
    /// What computing its fields may use.
    budget: Budget,
    /// How strings are compared; without one, by their bytes.
    collator: Option<Collator>,
}

/// The fields that something happens to, in the order of the specification.
#[derive(Debug, Default)]
struct Tree {
    fields: Named<Action>,
    /// Whether something is computed here or below.
    computes: bool,
}

#[derive(Debug)]
enum Action {
    Include,
    Exclude,
    /// With what it was parsed from.
    Compute(ExpressionNode, RawBson),
    Nested(Tree),
}

impl Tree {
    /// Puts `action` at `path`; the error is the part of the path that collides.
    fn insert(&mut self, parts: &[Box<str>], action: Action) -> Result<(), Collision> {
        let Some((first, rest)) = parts.split_first() else {
            return Ok(());
        };
        self.computes |= matches!(action, Action::Compute(..));
        let index = self.fields.place(first);
        match (index, rest.is_empty()) {
            (None, true) => {
                self.fields.push(first.clone(), action);
            }
            (None, false) => {
                let mut tree = Tree::default();
                tree.insert(rest, action)?;
                self.fields.push(first.clone(), Action::Nested(tree));
            }
            (Some(_), true) => {
                return Err(Collision {
                    remaining: String::new(),
                });
            }
            (Some(index), false) => match self.fields.value_mut(index) {
                Action::Nested(tree) => tree.insert(rest, action)?,
                _ => {
                    return Err(Collision {
                        remaining: rest.join("."),
                    });
                }
            },
        }
        Ok(())
    }

    fn visit<'t>(&'t self, visit: &mut dyn FnMut(&'t Action, &str), prefix: &str) {
        for (name, action) in self.fields.iter() {
            let path = if prefix.is_empty() {
                name.to_string()
            } else {
                format!("{prefix}.{name}")
            };
            match action {
                Action::Nested(tree) => tree.visit(visit, &path),
                other => visit(other, &path),
            }
        }
    }
}

impl Tree {
    fn serialize(&self, out: &mut DocumentWriter) {
        for (name, action) in self.fields.iter() {
            match action {
                Action::Include if &**name == TEXT_SCORE_FIELD || is_metadata(name) => {}
                Action::Include => out.append_bool(name, true),
                Action::Exclude => out.append_bool(name, false),
                Action::Compute(_, source) => out.append(name, source.as_raw_bson_ref()),
                Action::Nested(tree) => {
                    out.begin_document(name);
                    tree.serialize(out);
                    out.end();
                }
            }
        }
    }
}

struct Collision {
    remaining: String,
}

pub(super) fn parse_project(
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

pub(super) fn parse_add_fields(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    parse_addition("$addFields", value, context, out)
}

pub(super) fn parse_set(
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

pub(super) fn parse_unset(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let mut tree = Tree::default();
    let mut add = |path: &str| -> Result<(), QueryError> {
        let path = FieldPath::parse(path)?;
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
    QueryError::new(
        ErrorKind::Location(31249),
        format!(
            "Path collision at {path} remaining portion {}",
            collision.remaining
        ),
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
            self.field(&path, name.as_str(), value)?;
        }
        Ok(())
    }

    /// `name` is what the field is called where it stands: the path, or the end of it.
    fn field(&mut self, path: &str, name: &str, value: RawBsonRef<'_>) -> Result<(), QueryError> {
        if path.ends_with(".$") || path.contains(".$.") {
            return error(
                31324,
                "Cannot use positional projection in aggregation projection",
            );
        }
        if let RawBsonRef::Document(document) = value {
            let first = document.iter().next().and_then(Result::ok);
            match first.map(|(name, _)| name.as_str()) {
                None => {
                    return error(
                        51270,
                        "An empty sub-projection is not a valid value. Found empty object at path",
                    );
                }
                Some("$elemMatch") => {
                    return Err(QueryError::new(
                        ErrorKind::InvalidPipelineOperator,
                        "Cannot use $elemMatch in this context",
                    ));
                }
                Some(name) if name.starts_with('$') => {
                    if !is_operator(name) {
                        return error(31325, format!("Unknown expression {name}"));
                    }
                    return self.compute(path, value);
                }
                Some(_) => return self.fields(path, document),
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

/// MongoDB works out what is computed in the order in which it is written.
#[cold]
fn first_error(tree: &Tree, env: &Env<'_>) -> Option<QueryError> {
    tree.fields.iter().find_map(|(_, action)| match action {
        Action::Compute(node, _) => node.evaluate(env).err(),
        Action::Nested(below) => first_error(below, env),
        Action::Include | Action::Exclude => None,
    })
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
            tree.fields.push(TEXT_SCORE_FIELD.into(), Action::Include);
        }
        if mode == Mode::Inclusion && context.names_metadata {
            for name in metadata::field_names() {
                tree.fields.push(name.into(), Action::Include);
            }
        }
        // `_id` goes with an inclusion unless it is turned away.
        if mode == Mode::Inclusion && tree.fields.place("_id").is_none() {
            tree.fields.push_first("_id".into(), Action::Include);
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

    /// Adds the paths that are read; false if the whole document is.
    fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        let mut bounded = true;
        let mut visit = |action: &Action, path: &str| match action {
            Action::Compute(node, _) => bounded &= node.dependencies(paths),
            Action::Include => {
                paths.insert(path.to_string());
            }
            Action::Exclude | Action::Nested(_) => {}
        };
        self.tree.visit(&mut visit, "");
        if self.mode == Mode::Inclusion {
            // A computed field below another keeps what surrounds it.
            for (name, action) in self.tree.fields.iter() {
                if matches!(action, Action::Nested(_)) {
                    paths.insert(name.to_string());
                }
            }
        }
        bounded
    }

    pub(super) fn apply(
        &self,
        document: &RawDocument,
        arena: &Arena,
        variables: &Variables,
        needed: &Needed,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        let root = arena.root(document).expecting(self.reads);
        let env = Env::new(root, &self.budget)
            .with_collator(self.collator.as_ref())
            .with_outer(variables);
        let made = self.fields(&self.tree, document, &env, needed, writer);
        made.map_err(|error| first_error(&self.tree, &env).unwrap_or(error))
    }

    fn fields(
        &self,
        tree: &Tree,
        document: &RawDocument,
        env: &Env<'_>,
        needed: &Needed,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        let mut present = Places::default();
        for element in elements(document) {
            let Some(place) = tree.fields.place_of(element.name_bytes()) else {
                if self.mode != Mode::Inclusion && needed.includes(element.name_bytes()) {
                    writer.append_element(&element);
                }
                continue;
            };
            present.add(place);
            match &tree.fields.at(place).1 {
                Action::Include => writer.append_element(&element),
                Action::Exclude => {}
                Action::Compute(node, _) => {
                    // $addFields sets a field where it stands; $project moves it to the end.
                    if self.mode == Mode::Addition
                        && let Some(value) = node.evaluate(env)?
                    {
                        append(writer, element.name(), value)?;
                    }
                }
                Action::Nested(inner) => {
                    self.nested(inner, &element, Some(element.name()), env, writer)?;
                }
            }
        }
        if tree.computes {
            self.missing_fields(tree, &present, env, writer)?;
        }
        Ok(())
    }

    /// Computed fields that the document does not have, in the order of the specification.
    fn missing_fields(
        &self,
        tree: &Tree,
        present: &Places,
        env: &Env<'_>,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        for (place, (name, action)) in tree.fields.iter().enumerate() {
            match action {
                Action::Compute(node, _) => {
                    let in_place = self.mode == Mode::Addition && present.has(place);
                    if !in_place && let Some(value) = node.evaluate(env)? {
                        append(writer, name, value)?;
                    }
                }
                Action::Nested(inner) if inner.computes && !present.has(place) => {
                    writer.begin_document(name);
                    self.computed_only(inner, env, writer)?;
                    writer.end();
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A field that the tree goes below of. `name` is none for items of the open array.
    fn nested(
        &self,
        tree: &Tree,
        element: &Element<'_>,
        name: Option<&str>,
        env: &Env<'_>,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        match element.value() {
            RawBsonRef::Document(document) => {
                match name {
                    Some(name) => writer.begin_document(name),
                    None => writer.push_document(),
                }
                self.fields(tree, document, env, &Needed::All, writer)?;
                writer.end();
            }
            RawBsonRef::Array(array) => {
                match name {
                    Some(name) => writer.begin_array(name),
                    None => writer.push_array(),
                }
                for item in items(array) {
                    self.nested(tree, &item, None, env, writer)?;
                }
                writer.end();
            }
            _ if tree.computes => {
                match name {
                    Some(name) => writer.begin_document(name),
                    None => writer.push_document(),
                }
                self.computed_only(tree, env, writer)?;
                writer.end();
            }
            _ if self.mode == Mode::Inclusion => {}
            _ => match name {
                Some(_) => writer.append_element(element),
                None => writer.push_element(element),
            },
        }
        Ok(())
    }

    fn computed_only(
        &self,
        tree: &Tree,
        env: &Env<'_>,
        writer: &mut DocumentWriter,
    ) -> Result<(), QueryError> {
        for (name, action) in tree.fields.iter() {
            match action {
                Action::Compute(node, _) => {
                    if let Some(value) = node.evaluate(env)? {
                        append(writer, name, value)?;
                    }
                }
                Action::Nested(inner) if inner.computes => {
                    writer.begin_document(name);
                    self.computed_only(inner, env, writer)?;
                    writer.end();
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A computed value, unless it is too deep or the document becomes too large.
fn append(
    writer: &mut DocumentWriter,
    name: &str,
    value: RawBsonRef<'_>,
) -> Result<(), QueryError> {
    check_depth(value)?;
    writer.append(name, value);
    check_size(writer.len())
}

/// Hands on the paths that `$addFields` gives values to, and what is written for them.
fn each_added(
    path: &str,
    value: RawBsonRef<'_>,
    take: &mut dyn FnMut(&str, RawBsonRef<'_>) -> Result<(), QueryError>,
) -> Result<(), QueryError> {
    if let RawBsonRef::Document(document) = value {
        let first = document.iter().next().and_then(Result::ok);
        match first.map(|(name, _)| name.as_str()) {
            Some(name) if !name.starts_with('$') => {
                for (name, value) in document.iter().map_while(Result::ok) {
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

impl Stage for Projector {
    fn name(&self) -> &'static str {
        self.name
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name);
        self.tree.serialize(out);
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        match (self.dependencies(paths), self.mode) {
            (false, _) | (true, Mode::Exclusion) => Reads::Everything,
            (true, Mode::Inclusion) => Reads::Only,
            (true, Mode::Addition) => {
                // A field that is set in a document leaves the rest of it.
                let nested = |action: &Action| matches!(action, Action::Nested(_));
                let set = self.tree.fields.iter().filter(|(_, action)| nested(action));
                paths.extend(set.map(|(name, _)| name.to_string()));
                Reads::AndPasses
            }
        }
    }

    fn changes(&self) -> Changes {
        let fields = self.tree.fields.iter();
        if self.mode != Mode::Inclusion {
            return Changes::at(fields.map(|(name, _)| &**name));
        }
        let (mut kept, mut renamed) = (BTreeSet::new(), BTreeMap::new());
        for (name, action) in fields {
            match action {
                Action::Include => {
                    kept.insert(name.to_string());
                }
                Action::Nested(tree) if !tree.computes => {
                    let mut keep = |_: &Action, path: &str| {
                        // A position in an array is another one among the documents that stay.
                        if !path.split('.').any(|part| position(part).is_some()) {
                            kept.insert(path.to_owned());
                        }
                    };
                    tree.visit(&mut keep, name);
                }
                Action::Compute(ExpressionNode::Field(path), _) if path.parts().len() == 1 => {
                    renamed.insert(name.to_string(), path.to_string());
                }
                _ => {}
            }
        }
        Changes::AllBut { kept, renamed }
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn calls_script(&self) -> bool {
        let mut calls = false;
        let mut visit = |action: &Action, _: &str| {
            calls |= matches!(action, Action::Compute(node, _) if node.calls_script());
        };
        self.tree.visit(&mut visit, "");
        calls
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn is_one_to_one(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let looks_ahead = start.looks_ahead() && self.calls_script();
        let run = ProjectRun {
            projector: self,
            needed: Needed::of(&start.needed),
            variables: start.variables.clone(),
            arena: Arena::new(),
        };
        Ok(Ahead::of(run, looks_ahead))
    }
}

/// Fields of the tree that a document has, by their places.
#[derive(Default)]
struct Places {
    first: u64,
    rest: BTreeSet<usize>,
}

impl Places {
    fn add(&mut self, place: usize) {
        match 1u64.checked_shl(u32::try_from(place).unwrap_or(u32::MAX)) {
            Some(bit) => self.first |= bit,
            None => {
                self.rest.insert(place);
            }
        }
    }

    fn has(&self, place: usize) -> bool {
        match 1u64.checked_shl(u32::try_from(place).unwrap_or(u32::MAX)) {
            Some(bit) => self.first & bit != 0,
            None => self.rest.contains(&place),
        }
    }
}

struct ProjectRun {
    projector: Arc<Projector>,
    needed: Needed,
    variables: Variables,
    arena: Arena,
}

impl StageRun for ProjectRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let projected = self.work_out(document)?;
        self.hand_on(document, projected, next)
    }
}

impl Scripted for ProjectRun {
    type Found = RawDocumentBuf;

    fn work_out(&mut self, document: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        self.arena.reset();
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len());
        let (arena, variables) = (&self.arena, &self.variables);
        self.projector
            .apply(document, arena, variables, &self.needed, &mut writer)?;
        Ok(writer.finish())
    }

    fn hand_on(
        &mut self,
        _: &RawDocument,
        projected: RawDocumentBuf,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        next.push(&projected)
    }
}
