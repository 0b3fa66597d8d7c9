//! `distinct`: the different values of a field.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use banyan_document::path::{self, Path};
use banyan_document::{Collator, key};
use banyan_execution::{CreatedFrom, Distinct, DistinctOf, Request};
use banyan_query::canonical::CanonicalQuery;
use banyan_query::filter::Filter;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, cstr, rawdoc};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::collation::Asked;
use crate::context::{CommandContext, check_collection_name, collection_name};
use crate::errors;
use crate::params;
use crate::reads::{self, query_context};

pub static SPEC: CommandSpec = CommandSpec::new("distinct", Run::Future(run))
    .in_transaction()
    .fields(&["key", "query", "hint", "collation"])
    .computes();

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
        let mut key = None;
        for (position, field) in params::fields("distinct", body).enumerate() {
            match field.name {
                _ if position == 0 => parameters.collection = collection_name(field.value)?,
                "key" => key = Some(field.str()?),
                "query" => parameters.filter = field.document_or_null()?,
                "hint" => parameters.hint = Some(field.value),
                "collation" => parameters.collation = Asked::parse(field)?,
                _ => {}
            }
        }
        check_collection_name(database, parameters.collection)?;
        parameters.key = key.ok_or_else(|| params::missing_field("distinct", "key"))?;
        Ok(parameters)
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        let values = ctx.compute(|| distinct(ctx, &parameters)).await?;
        let mut reply = rawdoc! { "values": values };
        if let Some(time) = ctx.at_cluster_time() {
            reply.append(cstr!("atClusterTime"), time);
        }
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    })
}

fn distinct(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
) -> Result<RawArrayBuf, CommandError> {
    let path = Path::parse(parameters.key)
        .map_err(|error| CommandError::new(ErrorCode::Location(40352), error.to_string()))?;
    ctx.interrupt();
    let request = request(ctx, parameters)?;
    let mut values = Values {
        collator: request.query.collator().cloned(),
        ..Values::default()
    };
    let mut executor = reads::plan(ctx, parameters.collection, request)?.open(ctx)?;
    while let Some((_, row)) = executor.next_record().map_err(errors::query)? {
        values.take(&row, &path)?;
    }
    Ok(values.array)
}

/// Documents with every value.
pub fn request<'a>(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'a>,
) -> Result<Request<'a>, CommandError> {
    let collator = parameters.collation.collator(ctx, parameters.collection);
    let context = query_context(ctx, None, collator)?;
    let filter = match parameters.filter {
        Some(filter) => Filter::parse(filter, &context).map_err(errors::query)?,
        None => Filter::all_in(context.collator.clone()),
    };
    Ok(Request {
        query: Arc::new(CanonicalQuery::of_filter(Arc::new(filter))),
        created_from: CreatedFrom {
            filter: parameters.filter,
            ..CreatedFrom::default()
        },
        hint: parameters.hint,
        distinct: Some(Distinct {
            path: parameters.key.to_owned(),
            of: DistinctOf::Values,
        }),
        reads: Some(Arc::new(BTreeSet::from([parameters.key.to_owned()]))),
        ..Request::default()
    })
}

/// Values in the order they were first met.
#[derive(Default)]
struct Values {
    seen: HashSet<Vec<u8>>,
    array: RawArrayBuf,
    bytes: usize,
    key: Vec<u8>,
    /// How strings are compared; without one, by their bytes.
    collator: Option<Collator>,
}

impl Values {
    /// Adds what is at the path.
    fn take(&mut self, document: &RawDocument, path: &Path) -> Result<(), CommandError> {
        path::visit(document, path, &mut |visit| {
            // The items of an array were visited one by one.
            if !visit.whole_array
                && let Some(value) = visit.value
            {
                self.add(value);
            }
            ControlFlow::Continue(())
        });
        if self.bytes > VALUES_BYTES_MAX {
            return Err(CommandError::new(
                ErrorCode::Location(17217),
                "distinct too big, 16mb cap",
            ));
        }
        Ok(())
    }

    fn add(&mut self, value: RawBsonRef<'_>) {
        self.key.clear();
        key::encode_collated(value, self.collator.as_ref(), &mut self.key);
        if !self.seen.contains(&self.key) {
            self.seen.insert(self.key.clone());
            self.array.push(RawBson::from(value));
            self.bytes = self.array.as_bytes().len();
        }
    }
}
