//! $lookup, $unionWith and $documents: documents from elsewhere

use std::sync::Arc;

use bson::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::Pipeline;
use super::execute::{Drained, Flow, Next, Step};
use super::stage::{Stage, parse_nested};
use crate::budget::{Budget, Holding};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, items, show, type_name};
use crate::expression::{Arena, Expression, FieldPath};

/// Documents of a collection, as the caller reads them.
pub type Documents = Box<dyn Iterator<Item = Result<RawDocumentBuf, QueryError>> + Send>;

/// How a running pipeline reads other collections.
pub trait Sources: Send + Sync {
    /// The documents of a collection that match `filter`; of the pipeline's own database unless
    /// one is named. A collection that does not exist is empty.
    fn documents(
        &self,
        database: Option<&str>,
        collection: &str,
        filter: &RawDocument,
    ) -> Result<Documents, QueryError>;
}

fn needs_sources(stage: &str) -> QueryError {
    QueryError::new(
        ErrorKind::NotImplemented,
        format!("{stage} cannot read other collections here"),
    )
}

/// `from`/`coll`: a name, or a name with its database.
fn collection(value: RawBsonRef<'_>, stage: &str) -> Result<(Option<String>, String), QueryError> {
    match value {
        RawBsonRef::String(name) => Ok((None, name.into())),
        RawBsonRef::Document(document) => {
            let text = |name| document.get_str(name).ok();
            match (text("db"), text("coll")) {
                (Some(database), Some(name)) => Ok((Some(database.into()), name.into())),
                _ => Err(QueryError::new(
                    ErrorKind::FailedToParse,
                    format!("{stage} needs 'db' and 'coll' in: {}", show(value)),
                )),
            }
        }
        other => Err(QueryError::new(
            ErrorKind::FailedToParse,
            format!(
                "{stage} argument 'from' must be a string or an object, is type {}",
                type_name(Some(other))
            ),
        )),
    }
}

#[derive(Debug)]
pub struct Lookup {
    database: Option<String>,
    collection: Option<String>,
    output: FieldPath,
    equality: Option<Equality>,
    variables: Vec<(String, Expression)>,
    stages: Option<Vec<RawDocumentBuf>>,
    context: Context,
}

#[derive(Debug)]
struct Equality {
    local: Expression,
    foreign: String,
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let failed = |message: String| Err(QueryError::new(ErrorKind::FailedToParse, message));
    let RawBsonRef::Document(document) = value else {
        return failed(format!(
            "the $lookup stage specification must be an object, but found {}",
            type_name(Some(value))
        ));
    };
    let (mut from, mut output, mut local, mut foreign) = (None, None, None, None);
    let (mut variables, mut stages) = (Vec::new(), None);
    for (name, value) in document.iter().map_while(Result::ok) {
        match (name.as_str(), value) {
            ("from", value) => from = Some(collection(value, "$lookup")?),
            ("as", RawBsonRef::String(path)) => output = Some(FieldPath::parse(path)?),
            ("localField", RawBsonRef::String(path)) => local = Some(path),
            ("foreignField", RawBsonRef::String(path)) => foreign = Some(path),
            ("let", RawBsonRef::Document(document)) => {
                for (name, value) in document.iter().map_while(Result::ok) {
                    let expression = Expression::parse(value, context)?;
                    variables.push((name.as_str().to_string(), expression));
                }
            }
            ("pipeline", RawBsonRef::Array(array)) => stages = Some(array),
            ("as" | "localField" | "foreignField" | "let" | "pipeline", other) => {
                return failed(format!(
                    "$lookup argument '{name}: {}' must be a string, is type {}",
                    show(other),
                    type_name(Some(other))
                ));
            }
            (other, _) => return failed(format!("unknown argument to $lookup: {other}")),
        }
    }
    let Some(output) = output else {
        return failed("must specify 'as' field for a $lookup".into());
    };
    let equality = match (local, foreign) {
        (Some(local), Some(foreign)) => {
            FieldPath::parse(local)?;
            FieldPath::parse(foreign)?;
            let local = format!("${local}");
            let local = Expression::parse(RawBsonRef::String(&local), context)?;
            Some(Equality {
                local,
                foreign: foreign.into(),
            })
        }
        (None, None) if stages.is_some() => None,
        _ => {
            return failed(
                "$lookup requires both or neither of 'localField' and 'foreignField' to be \
                 specified"
                    .into(),
            );
        }
    };
    let (database, collection) = match from {
        Some((database, collection)) => (database, Some(collection)),
        None if stages.is_some() => (None, None),
        None => return failed("must specify 'from' field for a $lookup".into()),
    };
    let stages = match stages {
        None => None,
        Some(array) => Some(check_stages(array, &variables, context)?),
    };
    let context = context.clone();
    let lookup = Lookup {
        database,
        collection,
        output,
        equality,
        variables,
        stages,
        context,
    };
    out.push(Stage::Lookup(Arc::new(lookup)));
    Ok(())
}

/// Parses the nested pipeline for its errors, its variables null for now.
fn check_stages(
    array: &RawArray,
    variables: &[(String, Expression)],
    context: &Context,
) -> Result<Vec<RawDocumentBuf>, QueryError> {
    let mut context = context.clone();
    let unknown = |name: &String| (name.clone(), RawBson::Null);
    context
        .variables
        .extend(variables.iter().map(|(name, _)| unknown(name)));
    let mut stages: Vec<RawDocumentBuf> = Vec::new();
    for item in items(array) {
        if let RawBsonRef::Document(stage) = item {
            stages.push(stage.to_owned());
        }
    }
    // An error may come from a variable that is null only here; it comes again when it runs.
    if variables.is_empty() {
        parse_nested("$lookup", array, &context)?;
    }
    Ok(stages)
}

impl Lookup {
    pub(super) fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        if let Some(collection) = &self.collection {
            names.push((self.database.clone(), collection.clone()));
        }
        let stages: Vec<_> = self.stages.iter().flatten().map(|stage| &**stage).collect();
        if let Ok(pipeline) = Pipeline::parse(&stages, &self.context) {
            names.extend(pipeline.collections_read());
        }
    }

    pub(super) fn step(
        self: &Arc<Self>,
        sources: Option<&Arc<dyn Sources>>,
        budget: &Budget,
    ) -> Result<Box<dyn Step>, QueryError> {
        let sources = sources.cloned().ok_or_else(|| needs_sources("$lookup"))?;
        Ok(Box::new(LookupStep {
            holding: budget.holding("$lookup").fails_with(4568),
            lookup: self.clone(),
            sources,
            arena: Arena::new(),
        }))
    }
}

struct LookupStep {
    lookup: Arc<Lookup>,
    sources: Arc<dyn Sources>,
    arena: Arena,
    holding: Holding,
}

impl Step for LookupStep {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.arena.reset();
        let found = self.found(document)?;
        let mut writer = DocumentWriter::new();
        // $addFields knows how to set a dotted path.
        let name = self.lookup.output.to_string();
        writer.begin_document(&name);
        writer.append("$literal", found.as_raw_bson_ref());
        writer.end();
        let spec = writer.finish();
        let projector = super::Projector::parse_add_fields(&spec, &self.lookup.context)?;
        let mut writer = DocumentWriter::with_capacity(document.as_bytes().len() + 64);
        projector.apply(document, &self.arena, &mut writer)?;
        next.push(&writer.finish())
    }
}

impl LookupStep {
    fn found(&mut self, document: &RawDocument) -> Result<RawBson, QueryError> {
        let lookup = &*self.lookup;
        let filter = match &lookup.equality {
            None => RawDocumentBuf::new(),
            Some(equality) => equality.filter(document, &self.arena)?,
        };
        let input: Documents = match &lookup.collection {
            Some(collection) => {
                self.sources
                    .documents(lookup.database.as_deref(), collection, &filter)?
            }
            None => Box::new(std::iter::empty()),
        };
        let documents: Documents = match &lookup.stages {
            None => input,
            Some(stages) => {
                let mut context = lookup.context.fresh();
                for (name, expression) in &lookup.variables {
                    // A variable whose value is missing is null for the nested pipeline.
                    let value = expression.evaluate(document, &self.arena)?;
                    let value = value.map_or(RawBson::Null, Into::into);
                    context.variables.push((name.clone(), value));
                }
                let stages: Vec<_> = stages.iter().map(|stage| &**stage).collect();
                let pipeline = Pipeline::parse(&stages, &context)?;
                Box::new(pipeline.run(input, Some(self.sources.clone()))?)
            }
        };
        let mut list = bson::RawArrayBuf::new();
        self.holding.set(0)?;
        for found in documents {
            let found = found?;
            self.holding.add(found.as_bytes().len())?;
            list.push(&found);
        }
        Ok(RawBson::Array(list))
    }
}

impl Equality {
    /// What the foreign field must be: the local value, or one of them if it is an array.
    fn filter(&self, document: &RawDocument, arena: &Arena) -> Result<RawDocumentBuf, QueryError> {
        let value = self
            .local
            .evaluate(document, arena)?
            .unwrap_or(RawBsonRef::Null);
        let mut writer = DocumentWriter::new();
        writer.begin_document(&self.foreign);
        match value {
            RawBsonRef::Array(array) => writer.append_array("$in", array),
            other => writer.append("$eq", other),
        }
        writer.end();
        Ok(writer.finish())
    }
}

#[derive(Debug)]
pub struct UnionWith {
    database: Option<String>,
    collection: Option<String>,
    pipeline: Pipeline,
}

pub(super) fn parse_union(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let (mut from, mut pipeline) = (None, Pipeline::default());
    match value {
        RawBsonRef::String(name) => from = Some((None, name.to_string())),
        RawBsonRef::Document(document) => {
            for (name, value) in document.iter().map_while(Result::ok) {
                match (name.as_str(), value) {
                    ("coll", value) => from = Some(collection(value, "$unionWith")?),
                    ("pipeline", RawBsonRef::Array(array)) => {
                        pipeline = parse_nested("$unionWith", array, context)?;
                    }
                    (other, _) => {
                        return error(
                            40415,
                            format!("BSON field '$unionWith.{other}' is an unknown field."),
                        );
                    }
                }
            }
        }
        other => {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                format!(
                    "the $unionWith stage specification must be an object or string, but found {}",
                    type_name(Some(other))
                ),
            ));
        }
    }
    let (database, collection) = match from {
        Some((database, collection)) => (database, Some(collection)),
        None if pipeline.source().is_some() => (None, None),
        None => {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                "$unionWith stage without explicit collection must have a pipeline with \
                 $documents as first stage",
            ));
        }
    };
    out.push(Stage::UnionWith(Arc::new(UnionWith {
        database,
        collection,
        pipeline,
    })));
    Ok(())
}

impl UnionWith {
    pub(super) fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        if let Some(collection) = &self.collection {
            names.push((self.database.clone(), collection.clone()));
        }
        names.extend(self.pipeline.collections_read());
    }

    pub(super) fn step(
        self: &Arc<Self>,
        sources: Option<&Arc<dyn Sources>>,
    ) -> Result<Box<dyn Step>, QueryError> {
        let sources = sources
            .cloned()
            .ok_or_else(|| needs_sources("$unionWith"))?;
        Ok(Box::new(UnionStep {
            union: self.clone(),
            sources,
            running: None,
        }))
    }
}

struct UnionStep {
    union: Arc<UnionWith>,
    sources: Arc<dyn Sources>,
    running: Option<Documents>,
}

impl Step for UnionStep {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        next.push(document)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        if self.running.is_none() {
            let union = &*self.union;
            let input: Documents = match &union.collection {
                Some(collection) => self.sources.documents(
                    union.database.as_deref(),
                    collection,
                    &RawDocumentBuf::new(),
                )?,
                None => Box::new(std::iter::empty()),
            };
            self.running = Some(Box::new(
                union.pipeline.run(input, Some(self.sources.clone()))?,
            ));
        }
        match self.running.as_mut().and_then(Iterator::next) {
            None => Ok(Drained::Done),
            Some(document) => match next.push(&document?)? {
                Flow::Continue | Flow::Full => Ok(Drained::More),
                Flow::Stop => Ok(Drained::Done),
            },
        }
    }
}

pub(super) fn parse_documents(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let expression = Expression::parse(value, context)?;
    let Some(RawBson::Array(array)) = expression.evaluate_owned(&RawDocumentBuf::new())? else {
        return error(5858203, "an array is expected");
    };
    let mut documents = Vec::new();
    for item in items(&array) {
        match item {
            RawBsonRef::Document(document) => documents.push(document.to_owned()),
            other => {
                return error(
                    40228,
                    format!(
                        "'newRoot' expression  must evaluate to an object, but resulting value \
                         was: {}. Type of resulting value: '{}'.",
                        crate::expression::value::describe(Some(other)),
                        type_name(Some(other))
                    ),
                );
            }
        }
    }
    out.push(Stage::Documents(documents));
    Ok(())
}

pub(super) struct DocumentsStep {
    documents: std::vec::IntoIter<RawDocumentBuf>,
}

impl DocumentsStep {
    pub(super) fn new(documents: Vec<RawDocumentBuf>) -> DocumentsStep {
        DocumentsStep {
            documents: documents.into_iter(),
        }
    }
}

impl Step for DocumentsStep {
    /// There is no input: this is the first stage.
    fn push(&mut self, _: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        Ok(Flow::Stop)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        match self.documents.next() {
            None => Ok(Drained::Done),
            Some(document) => match next.push(&document)? {
                Flow::Continue | Flow::Full => Ok(Drained::More),
                Flow::Stop => Ok(Drained::Done),
            },
        }
    }
}
