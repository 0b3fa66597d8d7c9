//! $graphLookup: the documents of another collection that can be reached from a document
//!
//! One step finds the documents whose `connectToField` has one of some values, as a `$lookup`
//! does. The next one asks for the values at `connectFromField` of those that are new.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use foldhash::fast::RandomState;

use banyan_document::{Collator, DocumentWriter, Number, field, key, path};

use super::join::Join;
use super::parse::parse as parse_lookup;
use super::specification::{self, Lookup, failed};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, items, type_name};
use crate::expression::{Arena, Expression, FieldPath, byte_len};
use crate::filter::Filter;
use crate::memory::{Holding, consumer};
use crate::pipeline::foreign::{From, Reader};
use crate::pipeline::sequence::ParseInner;
use crate::pipeline::stage::{Changes, Reads, Stage};
use crate::pipeline::stage_run::{Flow, Next, StageRun, Start};
use crate::pipeline::unwind::write_at;
use crate::variables::Variables;

#[derive(Debug)]
pub struct GraphLookup {
    start_with: Expression,
    connect_from: FieldPath,
    connect_to: FieldPath,
    output: FieldPath,
    depth_max: Option<i64>,
    depth_field: Option<FieldPath>,
    /// One step.
    lookup: Arc<Lookup>,
    source: RawDocumentBuf,
}

#[derive(Default)]
struct Arguments<'a> {
    start_with: Option<Expression>,
    connect_from: Option<&'a str>,
    connect_to: Option<&'a str>,
    output: Option<&'a str>,
    depth_max: Option<i64>,
    depth_field: Option<FieldPath>,
    restriction: Option<&'a RawDocument>,
}

pub(in crate::pipeline) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    parse_inner: ParseInner,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let document = specification::document("$graphLookup", value)?;
    let from = match field(document, "from") {
        Some(RawBsonRef::String("")) => {
            let message = "invalid $graphLookup namespace: the collection has no name";
            return Err(QueryError::new(ErrorKind::InvalidNamespace, message));
        }
        Some(RawBsonRef::String(from)) => from,
        Some(other) => {
            if let RawBsonRef::Document(from) = other {
                From::check_form(from)?;
            }
            let found = type_name(Some(other));
            return failed(format!(
                "$graphLookup 'from' field must be a string, but found {found}"
            ));
        }
        None => return failed("missing 'from' option to $graphLookup stage specification"),
    };
    let mut arguments = Arguments::default();
    for (name, value) in document.iter().map_while(Result::ok) {
        arguments.argument(name.as_str(), value, context)?;
    }
    let Arguments {
        start_with: Some(start_with),
        connect_from: Some(connect_from),
        connect_to: Some(connect_to),
        output: Some(output),
        depth_max,
        depth_field,
        restriction,
    } = arguments
    else {
        return error(
            40105,
            "$graphLookup requires 'from', 'as', 'startWith', 'connectFromField', and \
             'connectToField' to be specified.",
        );
    };
    let output = FieldPath::parse(output)?;
    let connect_from = FieldPath::parse(connect_from)?;
    let connects_to = FieldPath::parse(connect_to)?;
    out.push(Arc::new(GraphLookup {
        start_with,
        connect_from,
        connect_to: connects_to,
        lookup: one_step(from, connect_to, restriction, context, parse_inner)?,
        output,
        depth_max,
        depth_field,
        source: document.to_owned(),
    }));
    Ok(())
}

impl<'a> Arguments<'a> {
    fn argument(
        &mut self,
        name: &str,
        value: RawBsonRef<'a>,
        context: &Context,
    ) -> Result<(), QueryError> {
        let text = || match value {
            RawBsonRef::String(text) => Ok(text),
            RawBsonRef::Document(_) => error(
                13111,
                format!("wrong type for field ({name}) object != string"),
            ),
            _ => {
                let found = type_name(Some(value));
                error(
                    40103,
                    format!("expected string as argument for {name}, found: {found}"),
                )
            }
        };
        // An empty path counts as none.
        let path = || text().map(|text| Some(text).filter(|text| !text.is_empty()));
        match name {
            "from" => {}
            "startWith" => {
                let parse = |context: &Context| Expression::parse(value, context);
                self.start_with = Some(context.as_written(parse)?);
            }
            "connectFromField" => self.connect_from = path()?,
            "connectToField" => self.connect_to = path()?,
            "as" => self.output = path()?,
            "depthField" => self.depth_field = Some(FieldPath::parse(text()?)?),
            "maxDepth" => self.depth_max = Some(depth(value)?),
            "restrictSearchWithMatch" => {
                let RawBsonRef::Document(restriction) = value else {
                    let found = type_name(Some(value));
                    return error(
                        40185,
                        format!("restrictSearchWithMatch must be an object, found {found}"),
                    );
                };
                // There is nothing to search in with $text.
                let context = Context {
                    text: None,
                    ..context.clone()
                };
                let parse = || Filter::parse(restriction, &context);
                let parsed = context.folding.ignoring_failures(parse);
                parsed.map_err(|error| {
                    let message = format!(
                        "Failed to parse 'restrictSearchWithMatch' option to $graphLookup :: \
                         caused by :: {}",
                        error.message
                    );
                    QueryError::new(error.kind, message)
                })?;
                self.restriction = Some(restriction);
            }
            other => return error(40104, format!("Unknown argument to $graphLookup: {other}")),
        }
        Ok(())
    }
}

fn depth(value: RawBsonRef<'_>) -> Result<i64, QueryError> {
    let Some(number) = Number::from_raw(value) else {
        let found = type_name(Some(value));
        return error(
            40100,
            format!("maxDepth must be numeric, found type: {found}"),
        );
    };
    let whole = number.to_i64_saturating();
    if whole < 0 {
        return error(
            40101,
            format!("maxDepth requires a nonnegative argument, found: {whole}"),
        );
    }
    // A decimal may have digits that a double does not hold.
    if whole as f64 != number.to_f64() {
        return error(
            40102,
            format!("maxDepth could not be represented as a long long: {whole}"),
        );
    }
    Ok(whole)
}

/// A `$lookup` by the field that is connected to. What has no such field is never reached, not
/// even by null.
fn one_step(
    from: &str,
    connect_to: &str,
    restriction: Option<&RawDocument>,
    context: &Context,
    parse_inner: ParseInner,
) -> Result<Arc<Lookup>, QueryError> {
    let mut writer = DocumentWriter::new();
    writer.append_str("from", from);
    // The search gives the values.
    writer.append_str("localField", "_id");
    writer.append_str("foreignField", connect_to);
    writer.append_str("as", "found");
    writer.begin_array("pipeline");
    // Every document has one.
    if connect_to != "_id" {
        writer.push_document();
        writer.begin_document("$match");
        writer.begin_document(connect_to);
        writer.append_bool("$exists", true);
        writer.end();
        writer.end();
        writer.end();
    }
    if let Some(restriction) = restriction {
        writer.push_document();
        writer.append_doc("$match", restriction);
        writer.end();
    }
    writer.end();
    let spec = writer.finish();
    let mut stages = Vec::new();
    let spec = RawBsonRef::Document(&spec);
    parse_lookup(spec, context, parse_inner, &mut stages)?;
    let lookup = stages.iter().find_map(|stage| stage.get::<Lookup>());
    let Some(mut lookup) = lookup.cloned() else {
        return failed("$graphLookup finds no way to its collection");
    };
    if let Some(equality) = &mut lookup.equality {
        equality.takes_patterns = true;
    }
    Ok(Arc::new(lookup))
}

/// Null does not lead to a document that has undefined where it is connected to, as it would match one.
fn holds_undefined(document: &RawDocument, connect_to: &FieldPath) -> bool {
    let mut holds = false;
    path::each_value(document, connect_to.parts(), &mut |value| {
        holds |= matches!(value, RawBsonRef::Undefined);
    });
    holds
}

impl Stage for GraphLookup {
    fn name(&self) -> &'static str {
        "$graphLookup"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name(), &self.source);
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        // The field that it sets may lie in a document that stays.
        paths.insert(self.output.first().to_owned());
        match self.start_with.dependencies(paths) {
            true => Reads::AndPasses,
            false => Reads::Everything,
        }
    }

    fn changes(&self) -> Changes {
        Changes::at([self.output.first()])
    }

    fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        self.lookup.collections_read(names);
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn runs_in_parts(&self) -> bool {
        true
    }

    fn is_one_to_one(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let reader = Reader::new(self.lookup.from.as_ref(), start.sources, "$graphLookup")?;
        Ok(Box::new(GraphRun {
            start_with: self.start_with.bind(start.variables),
            join: Join::new(self.lookup.clone(), reader, start)?,
            variables: start.variables.clone(),
            budget: start.budget.clone(),
            holding: start.budget.holding(&consumer::GRAPH_LOOKUP),
            arena: Arena::new(),
            graph: self,
        }))
    }
}

struct GraphRun {
    graph: Arc<GraphLookup>,
    start_with: Expression,
    join: Join,
    /// Of the `$lookup` stages around.
    variables: Variables,
    budget: Budget,
    holding: Holding,
    arena: Arena,
}

/// Values to look for, each once in the whole search.
#[derive(Default)]
struct Frontier {
    asked: HashSet<Box<[u8]>, RandomState>,
    values: Vec<RawBson>,
}

impl Frontier {
    fn add(
        &mut self,
        value: RawBsonRef<'_>,
        collator: Option<&Collator>,
        budget: &Budget,
        holding: &mut Holding,
    ) -> Result<(), QueryError> {
        budget.spend_bytes(byte_len(value))?;
        if matches!(value, RawBsonRef::Undefined) {
            return Err(QueryError::new(
                ErrorKind::BadValue,
                "InMatchExpression equality cannot be undefined",
            ));
        }
        let mut encoded = Vec::new();
        key::encode_collated(value, collator, &mut encoded);
        if !self.asked.contains(&encoded[..]) {
            holding.add(encoded.len() + byte_len(value))?;
            self.asked.insert(encoded.into());
            self.values.push(value.into());
        }
        Ok(())
    }
}

impl GraphRun {
    /// The documents that are reached, in the order in which they are.
    fn search(&mut self, document: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        self.arena.reset();
        let graph = self.graph.clone();
        let (budget, holding) = (&self.budget, &mut self.holding);
        let collator = graph.lookup.collator.as_ref();
        holding.set(0)?;
        let mut frontier = Frontier::default();
        match self.start_with.evaluate(document, &self.arena)? {
            Some(RawBsonRef::Array(array)) => {
                for item in items(array) {
                    frontier.add(item, collator, budget, holding)?;
                }
            }
            Some(value) => frontier.add(value, collator, budget, holding)?,
            None => {}
        }
        let mut reached = DocumentWriter::new();
        reached.begin_array("");
        let (mut visited, mut depth) = (HashSet::<Box<[u8]>, RandomState>::default(), 0);
        while !frontier.values.is_empty() && graph.depth_max.is_none_or(|max| depth <= max) {
            let values = std::mem::take(&mut frontier.values);
            let is_last = graph.depth_max == Some(depth);
            let values: Vec<_> = values.iter().map(RawBson::as_raw_bson_ref).collect();
            let asks_null = values.iter().any(|v| matches!(v, RawBsonRef::Null));
            self.join.find(&values, &self.variables, &mut |found| {
                if asks_null && holds_undefined(found, &graph.connect_to) {
                    return Ok(());
                }
                // Documents are told apart by bytes, whatever the collation.
                let mut id = Vec::new();
                key::encode(field(found, "_id").unwrap_or(RawBsonRef::Null), &mut id);
                if visited.contains(&id[..]) {
                    return Ok(());
                }
                holding.add(id.len() + found.as_bytes().len())?;
                visited.insert(id.into());
                if !is_last {
                    let mut next = Vec::new();
                    let parts = graph.connect_from.parts();
                    path::each_value(found, parts, &mut |value| next.push(value));
                    for value in next {
                        frontier.add(value, collator, budget, holding)?;
                    }
                }
                match &graph.depth_field {
                    None => reached.push(RawBsonRef::Document(found)),
                    Some(path) => {
                        let mut told = DocumentWriter::new();
                        write_at(found, path, RawBsonRef::Int64(depth), &mut told);
                        reached.push(RawBsonRef::Document(&told.finish()));
                    }
                }
                Ok(())
            })?;
            depth += 1;
        }
        reached.end();
        Ok(reached.finish())
    }
}

impl StageRun for GraphRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let reached = self.search(document)?;
        let array = field(&reached, "").unwrap_or(RawBsonRef::Null);
        let bytes = document.as_bytes().len() + reached.as_bytes().len();
        let mut writer = DocumentWriter::with_capacity(bytes);
        write_at(document, &self.graph.output, array, &mut writer);
        next.push(&writer.finish())
    }
}
