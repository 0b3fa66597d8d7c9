//! $lookup: for each document the documents of another collection that belong to it
//!
//! The inner pipeline is parsed once; `let` binds its variables for each document. What the stage
//! knows of the foreign documents that a document can get, a value that they have at a path, comes
//! from `localField` and `foreignField` or from an equality in the pipeline's first `$match`.
//! `join.rs` finds them by it.

mod graph;
mod join;
mod kept;
mod unwinding;

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, field};

use super::Pipeline;
use super::execute::{Flow, Next, StageRun, Start};
use super::foreign::{From, Reader};
use super::matching::Match;
use super::pushdown::{self, Leading};
use super::stage::{Changes, Reads, Stage};
use super::table::parse_nested;
use super::unwind::{Unwind, write_at};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{items, show, type_name};
use crate::expression::{Arena, Expression, FieldPath, check_variable_name};
use crate::memory::{Holding, consumer};
use crate::variables::Variables;
use banyan_document::Collator;

pub(super) use graph::parse as parse_graph;
use join::{Join, Take};
use unwinding::UnwindingRun;

#[derive(Clone, Debug)]
pub struct Lookup {
    from: Option<From>,
    output: FieldPath,
    equality: Option<Equality>,
    /// What `let` binds, in the order of the slots.
    variables: Vec<(Box<str>, Expression)>,
    leading: Leading,
    /// What the documents that no variable has a part in go through,
    before: Pipeline,
    /// and what they go through for each document.
    within: Pipeline,
    /// Whether one was written at all.
    has_pipeline: bool,
    /// The `$unwind` of the field with the results, which then need not be put into one array.
    unwind: Option<Arc<Unwind>>,
    /// How the values that join are compared as strings.
    collator: Option<Collator>,
}

#[derive(Clone, Debug)]
struct Equality {
    local: FieldPath,
    foreign: Box<str>,
}

#[derive(Default)]
struct Arguments<'a> {
    from: Option<From>,
    output: Option<FieldPath>,
    local: Option<&'a str>,
    foreign: Option<&'a str>,
    variables: Option<&'a RawDocument>,
    pipeline: Option<&'a bson::RawArray>,
    unwind: Option<&'a RawDocument>,
}

/// What a router calls the `$unwind` that the stage does.
const UNWIND: &str = "$_internalUnwind";

fn failed<T>(message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::new(ErrorKind::FailedToParse, message))
}

fn not_empty(path: &str) -> Option<&str> {
    Some(path).filter(|path| !path.is_empty())
}

impl<'a> Arguments<'a> {
    fn parse(document: &'a RawDocument) -> Result<Arguments<'a>, QueryError> {
        let mut arguments = Arguments::default();
        for (name, value) in document.iter().map_while(Result::ok) {
            arguments.argument(name.as_str(), value)?;
        }
        Ok(arguments)
    }

    fn argument(&mut self, name: &str, value: RawBsonRef<'a>) -> Result<(), QueryError> {
        match (name, value) {
            ("from", value) => self.from = Some(From::parse(value, "$lookup")?),
            ("as", RawBsonRef::String(path)) => self.output = Some(FieldPath::parse(path)?),
            ("localField", RawBsonRef::String(path)) => self.local = not_empty(path),
            ("foreignField", RawBsonRef::String(path)) => self.foreign = not_empty(path),
            ("let", RawBsonRef::Document(document)) => self.variables = Some(document),
            ("pipeline", RawBsonRef::Array(array)) => self.pipeline = Some(array),
            (UNWIND, RawBsonRef::Document(unwind)) => self.unwind = Some(unwind),
            ("pipeline", _) => {
                return Err(QueryError::new(
                    ErrorKind::TypeMismatch,
                    "'pipeline' option must be specified as an array",
                ));
            }
            ("as" | "localField" | "foreignField" | "let", other) => {
                let wanted = if name == "let" {
                    "an object"
                } else {
                    "a string"
                };
                return failed(format!(
                    "$lookup argument '{name}: {}' must be {wanted}, is type {}",
                    show(other),
                    type_name(Some(other))
                ));
            }
            (other, _) => return failed(format!("unknown argument to $lookup: {other}")),
        }
        Ok(())
    }

    fn equality(&self) -> Result<Option<Equality>, QueryError> {
        match (self.local, self.foreign) {
            (Some(local), Some(foreign)) => {
                FieldPath::parse(foreign)?;
                Ok(Some(Equality {
                    local: FieldPath::parse(local)?,
                    foreign: foreign.into(),
                }))
            }
            (None, None) if self.pipeline.is_some() => Ok(None),
            _ => failed(
                "$lookup requires either 'pipeline' or both 'localField' and 'foreignField' to be \
                 specified",
            ),
        }
    }
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return failed(format!(
            "the $lookup stage specification must be an object, but found {}",
            type_name(Some(value))
        ));
    };
    let mut arguments = Arguments::parse(document)?;
    let Some(output) = arguments.output.take() else {
        return failed("must specify 'as' field for a $lookup");
    };
    let equality = arguments.equality()?;
    if arguments.from.is_none() && arguments.pipeline.is_none() {
        return failed("must specify 'from' field for a $lookup");
    }
    let (mut names, mut variables) = (Vec::new(), Vec::new());
    for (name, value) in arguments.variables.into_iter().flatten().flatten() {
        check_variable_name(name.as_str(), true)?;
        names.push(name.as_str());
        variables.push((name.as_str().into(), Expression::parse(value, context)?));
    }
    let (first, end) = (
        context.scope.next_slot(),
        context.scope.next_slot() + names.len(),
    );
    let inner = Context {
        scope: context.scope.with(names),
        ..context.clone()
    };
    let mut pipeline = match arguments.pipeline {
        Some(array) => parse_nested("$lookup", array, &inner)?,
        None if arguments.variables.is_some() => {
            return failed("$lookup with a 'let' argument must also specify 'pipeline'");
        }
        None => Pipeline::empty(context),
    };
    if arguments.from.is_none() && pipeline.source().is_none() {
        return failed("must specify 'from' field for a $lookup");
    }
    let leading = pushdown::take_leading(&mut pipeline, &inner)?;
    let mut independent = pipeline.independent(first, end);
    if equality.is_some() {
        // The equality comes first; only filters may be moved before it.
        let stages = pipeline.stages().take(independent);
        independent = stages.take_while(|stage| stage.is::<Match>()).count();
    }
    let (before, within) = pipeline.split_at(independent);
    let unwind = match arguments.unwind {
        Some(stage) => match field(stage, "$unwind") {
            Some(unwind) => Some(Arc::new(Unwind::parse(unwind)?)),
            None => return failed(format!("{UNWIND} must hold an $unwind")),
        },
        None => None,
    };
    out.push(Arc::new(Lookup {
        from: arguments.from,
        output,
        equality,
        variables,
        leading,
        before,
        within,
        has_pipeline: arguments.pipeline.is_some(),
        unwind,
        collator: context.collator.clone(),
    }));
    Ok(())
}

impl Lookup {
    /// The stage together with an `$unwind` behind it, if that unwinds its results.
    pub(super) fn unwinding(&self, unwind: &Unwind) -> Option<Lookup> {
        let fits = self.unwind.is_none() && unwind.path == self.output;
        fits.then(|| Lookup {
            unwind: Some(Arc::new(unwind.clone())),
            ..self.clone()
        })
    }
}

impl Stage for Lookup {
    fn name(&self) -> &'static str {
        "$lookup"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        if let Some(from) = &self.from {
            from.serialize("from", out);
        }
        out.append_str("as", &self.output.to_string());
        if let Some(equality) = &self.equality {
            out.append_str("localField", &equality.local.to_string());
            out.append_str("foreignField", &equality.foreign);
        }
        if self.has_pipeline {
            out.begin_document("let");
            for (name, variable) in &self.variables {
                out.append(name, variable.source());
            }
            out.end();
            out.begin_array("pipeline");
            self.leading.serialize_plain(out);
            self.before.serialize_stages(out);
            self.within.serialize_stages(out);
            out.end();
        }
        if let Some(unwind) = &self.unwind {
            out.begin_document(UNWIND);
            unwind.serialize(out);
            out.end();
        }
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        let mut bounded = true;
        for (_, variable) in &self.variables {
            bounded &= variable.dependencies(paths);
        }
        paths.extend(
            self.equality
                .iter()
                .map(|equality| equality.local.to_string()),
        );
        // The field that it sets may lie in a document that stays.
        paths.insert(self.output.first().to_owned());
        match bounded {
            true => Reads::AndPasses,
            false => Reads::Everything,
        }
    }

    fn changes(&self) -> Changes {
        let index = self
            .unwind
            .iter()
            .filter_map(|u| u.include_array_index.as_ref());
        Changes::at(
            [self.output.first()]
                .into_iter()
                .chain(index.map(FieldPath::first)),
        )
    }

    fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        if let Some(from) = &self.from {
            names.push((from.database.clone(), from.collection.clone()));
        }
        names.extend(self.before.collections_read());
        names.extend(self.within.collections_read());
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn is_one_to_one(&self) -> bool {
        self.unwind.is_none()
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let finder = Finder::new(self.clone(), start)?;
        Ok(match &self.unwind {
            Some(unwind) => Box::new(UnwindingRun::new(finder, unwind.clone(), start)),
            None => Box::new(LookupRun {
                finder,
                holding: start.budget.holding(&consumer::LOOKUP_RESULT),
            }),
        })
    }
}

struct LookupRun {
    finder: Finder,
    holding: Holding,
}

impl StageRun for LookupRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let mut found = DocumentWriter::new();
        found.begin_array("");
        let holding = &mut self.holding;
        holding.set(0)?;
        self.finder.find(document, &mut |document| {
            holding.add(document.as_bytes().len())?;
            found.push(RawBsonRef::Document(document));
            Ok(())
        })?;
        found.end();
        let found = found.finish();
        let array = field(&found, "").unwrap_or(RawBsonRef::Null);
        let bytes = document.as_bytes().len() + found.as_bytes().len();
        let mut writer = DocumentWriter::with_capacity(bytes);
        write_at(document, &self.finder.lookup.output, array, &mut writer);
        next.push(&writer.finish())
    }
}

/// Finds what belongs to a document.
struct Finder {
    lookup: Arc<Lookup>,
    join: Join,
    variables: Vec<Expression>,
    /// The variables of the `$lookup` stages around.
    outer: Variables,
    arena: Arena,
}

impl Finder {
    fn new(lookup: Arc<Lookup>, start: &Start<'_>) -> Result<Finder, QueryError> {
        let reader = Reader::new(lookup.from.as_ref(), start.sources, "$lookup")?;
        let variables = lookup.variables.iter();
        Ok(Finder {
            variables: variables.map(|(_, v)| v.bind(start.variables)).collect(),
            outer: start.variables.clone(),
            join: Join::new(lookup.clone(), reader, start)?,
            lookup,
            arena: Arena::new(),
        })
    }

    fn find(&mut self, document: &RawDocument, take: &mut Take<'_>) -> Result<(), QueryError> {
        self.arena.reset();
        let variables = self.bind(document)?;
        let mut local = Vec::new();
        if let Some(equality) = &self.lookup.equality {
            local_values(document, equality.local.parts(), &mut local);
            if local.is_empty() {
                local.push(RawBsonRef::Null);
            }
            if local.contains(&RawBsonRef::Undefined) {
                return Err(QueryError::new(
                    ErrorKind::BadValue,
                    "cannot compare to undefined",
                ));
            }
        }
        self.join.find(&local, &variables, take)
    }

    fn bind(&self, document: &RawDocument) -> Result<Variables, QueryError> {
        if self.variables.is_empty() {
            return Ok(self.outer.clone());
        }
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            values.push(variable.evaluate(document, &self.arena)?);
        }
        Ok(self.outer.with(values))
    }
}

/// The values that `localField` joins by: an array at its end stands for its items, one on the way
/// for its documents. What is missing is passed over.
fn local_values<'d>(
    document: &'d RawDocument,
    parts: &[Box<str>],
    values: &mut Vec<RawBsonRef<'d>>,
) {
    let Some((first, rest)) = parts.split_first() else {
        return;
    };
    match field(document, first) {
        None => {}
        Some(RawBsonRef::Array(array)) if rest.is_empty() => values.extend(items(array)),
        Some(value) if rest.is_empty() => values.push(value),
        Some(RawBsonRef::Document(inner)) => local_values(inner, rest, values),
        Some(RawBsonRef::Array(array)) => {
            for item in items(array) {
                if let RawBsonRef::Document(inner) = item {
                    local_values(inner, rest, values);
                }
            }
        }
        Some(_) => {}
    }
}
