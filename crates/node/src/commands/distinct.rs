//! `distinct`: the different values of a field.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::path::{self, Path};
use banyan_document::{Collator, field, items, key};
use banyan_execution::operators::MemberRef;
use banyan_execution::parallel::Sink;
use banyan_execution::{Distinct, DistinctOf, Executor, Request};
use banyan_query::expression::FieldPath;
use banyan_query::query_settings::PARAMETER;
use banyan_query::view::Resolved;
use banyan_query::view::command::DISTINCT;
use banyan_query::{ErrorKind, QueryError};
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::aggregate;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::collation::Asked;
use crate::context::CommandContext;
use crate::errors;
use crate::forms;
use crate::names::{check_collection_name, check_outline, collection_name};
use crate::params::{self, Field};
use crate::reads;
use crate::views;

pub static SPEC: CommandSpec = CommandSpec::new("distinct", Run::Future(run))
    .access(Access::Collection(Action::Find))
    .in_transaction()
    .fields(&["key", "query", "hint", "collation"])
    .ignored(&[PARAMETER])
    .explained(check_explained)
    .computes();

fn check_explained(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "readConcern" => field.document().map(drop),
        _ => forms::of_explained_read(field),
    }
}

/// The values have to fit into one reply.
const VALUES_BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Default)]
pub struct Parameters<'a> {
    pub collection: &'a str,
    pub key: &'a str,
    pub filter: Option<&'a RawDocument>,
    pub hint: Option<RawBsonRef<'a>>,
    pub collation: Asked,
}

impl<'a> Parameters<'a> {
    pub fn parse(database: &str, body: &'a RawDocument) -> Result<Parameters<'a>, CommandError> {
        let mut parameters = Parameters::default();
        let (mut key, mut collation) = (None, None);
        for (position, field) in params::fields("distinct", body).enumerate() {
            match field.name {
                _ if position == 0 => parameters.collection = collection_name(field.value)?,
                "key" if field.is_null() => {}
                "key" => key = Some(field.str()?),
                "query" => parameters.filter = field.document_or_null()?,
                "hint" => parameters.hint = Some(field.value),
                "collation" => collation = field.document_or_null()?,
                _ => {}
            }
        }
        check_outline(database, parameters.collection)?;
        parameters.key = key.ok_or_else(|| params::missing_field("distinct", "key"))?;
        if parameters.key.contains('\0') {
            return Err(CommandError::new(
                ErrorCode::Location(31032),
                "Key field cannot contain an embedded null byte",
            ));
        }
        parameters.collation = Asked::of(collation)?;
        Ok(parameters)
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        check_collection_name(ctx.database(), parameters.collection)?;
        if let Some(view) = views::resolve(ctx, parameters.collection)? {
            // What is wrong with the query is told before what a view does not let be done.
            request(ctx, &parameters)?;
            return of_view(ctx, parameters.collection, &view).await;
        }
        let values = ctx.compute(|| distinct(ctx, &parameters)).await?;
        let mut reply = rawdoc! { "values": values };
        if let Some(time) = ctx.at_cluster_time() {
            reply.append(cstr!("atClusterTime"), time);
        }
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    })
}

async fn of_view(ctx: &CommandContext<'_>, name: &str, view: &Resolved) -> CommandResult {
    let body = view.of_distinct(ctx.body()).map_err(errors::query)?;
    let result = aggregate::one_of_view(ctx, name, view, &body).await?;
    let values = result.as_ref().and_then(|result| field(result, DISTINCT));
    let none = RawArrayBuf::new();
    let values = values.and_then(|values| values.as_array()).unwrap_or(&none);
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("values"), RawBsonRef::Array(values));
    if let Some(time) = ctx.at_cluster_time() {
        reply.append(cstr!("atClusterTime"), time);
    }
    // Of another type than elsewhere, as in MongoDB.
    reply.append(cstr!("ok"), 1);
    Ok(reply)
}

fn distinct(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
) -> Result<RawArrayBuf, CommandError> {
    ctx.interrupt();
    let request = request(ctx, parameters)?;
    let path = Path::parse(parameters.key)
        .map_err(|error| CommandError::new(ErrorCode::Location(40352), error.to_string()))?;
    let values = Values::new(path, request.query.collator().cloned());
    let mut executor = reads::plan(ctx, parameters.collection, request)?.open(ctx)?;
    values.of(&mut executor).map_err(errors::query)
}

/// Documents with every value.
pub fn request<'a>(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'a>,
) -> Result<Request<'a>, CommandError> {
    let matching = reads::matching(
        ctx,
        parameters.collection,
        parameters.filter,
        &parameters.collation,
    )?;
    // What is wrong with the filter is told first.
    FieldPath::parse(parameters.key).map_err(errors::query)?;
    Ok(Request {
        hint: parameters.hint,
        distinct: Some(Distinct {
            path: parameters.key.to_owned(),
            of: DistinctOf::Values,
        }),
        reads: Some(Arc::new(BTreeSet::from([parameters.key.to_owned()]))),
        ..matching
    })
}

/// Values at a path; of equal ones the one that was first met.
#[derive(Clone)]
struct Values {
    path: Arc<Path>,
    seen: HashSet<Vec<u8>>,
    array: RawArrayBuf,
    bytes: usize,
    key: Vec<u8>,
    /// How strings are compared; without one, by their bytes.
    collator: Option<Collator>,
}

impl Sink for Values {
    fn take(&mut self, member: MemberRef<'_>) -> Result<(), QueryError> {
        self.visit(member.document)
    }
}

impl Values {
    fn new(path: Path, collator: Option<Collator>) -> Values {
        Values {
            path: Arc::new(path),
            seen: HashSet::new(),
            array: RawArrayBuf::new(),
            bytes: 0,
            key: Vec::new(),
            collator,
        }
    }

    /// Those of all documents that a plan finds, on all cores if it scans many.
    fn of(mut self, executor: &mut Executor) -> Result<RawArrayBuf, QueryError> {
        let none = self.clone();
        if let Some(parts) = executor.divide(move || Ok(none.clone()))? {
            for part in parts {
                for value in items(&part.array) {
                    self.add(value.value());
                }
                self.check()?;
            }
            return Ok(self.sorted());
        }
        while let Some((_, row)) = executor.next_record()? {
            self.visit(&row)?;
        }
        Ok(self.sorted())
    }

    /// In their order, as a router has them, whatever plan has found them.
    fn sorted(&self) -> RawArrayBuf {
        let keyed = |value: RawBsonRef<'_>| {
            let mut key = Vec::new();
            key::encode_collated(value, self.collator.as_ref(), &mut key);
            key
        };
        let values = items(&self.array).map(|item| item.value());
        let mut values: Vec<_> = values.map(|value| (keyed(value), value)).collect();
        values.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut sorted = RawArrayBuf::new();
        for (_, value) in values {
            sorted.push(value);
        }
        sorted
    }

    /// Adds what is at the path.
    fn visit(&mut self, document: &RawDocument) -> Result<(), QueryError> {
        let path = self.path.clone();
        path::each_value(document, path.parts(), &mut |value| self.add(value));
        self.check()
    }

    fn check(&self) -> Result<(), QueryError> {
        match self.bytes > VALUES_BYTES_MAX {
            true => Err(QueryError::new(
                ErrorKind::Location(17217),
                "distinct too big, 16mb cap",
            )),
            false => Ok(()),
        }
    }

    fn add(&mut self, value: RawBsonRef<'_>) {
        self.key.clear();
        key::encode_collated(value, self.collator.as_ref(), &mut self.key);
        if !self.seen.contains(&self.key) {
            self.seen.insert(self.key.clone());
            self.array.push(value);
            self.bytes = self.array.as_bytes().len();
        }
    }
}
