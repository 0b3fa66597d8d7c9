//! `findAndModify`: on the one shard that the query names, or on any that has a document for it.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_wire::CommandError;
use bson::{RawBson, RawDocument, RawDocumentBuf, rawdoc};

use super::forward;
use crate::catalog::Route;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;
use crate::targeting::{self, Target};
use crate::without_shard_key::Write;

pub const SPEC: CommandSpec = CommandSpec::new(
    "findAndModify",
    "changes one document and returns it",
    run!(run),
)
.access(Access::Checked(reads_and_writes::find_and_modify))
.aliases(&["findandmodify"])
.retryable();

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let body = &context.request.body;
    let empty = RawDocumentBuf::new();
    let filter = fields::document(body, "query")?.unwrap_or(&empty);
    let upsert = fields::get_flag(body, "upsert");
    context
        .router
        .with_route(&ns, upsert, |route| async move {
            let Some(route) = route else {
                return Ok(nothing_found(context));
            };
            match target(&route, filter, body, upsert)? {
                Target::One(shard) => {
                    Ok(forward::forward(context, &route, &shard, true).await?.reply)
                }
                Target::Many(shards) | Target::AnyOf(shards) => {
                    let write = Write {
                        context,
                        route: &route,
                        shards: &shards,
                        upsert,
                        request: &|dropped, added| forward::passed_on(body, dropped, added),
                    };
                    Ok(write.run().await?.reply)
                }
            }
        })
        .await
}

fn target(
    route: &Route,
    filter: &RawDocument,
    body: &RawDocument,
    upsert: bool,
) -> Result<Target, CommandError> {
    let Some(table) = &route.table else {
        return Ok(Target::One(route.database.primary.clone()));
    };
    let filter = targeting::parse(table, filter, body)?;
    Ok(targeting::of_one(table, &filter, upsert))
}

fn nothing_found(context: &Context<'_>) -> RawDocumentBuf {
    let remove = fields::get_flag(&context.request.body, "remove");
    let last = if remove {
        rawdoc! {"n": 0}
    } else {
        rawdoc! {"n": 0, "updatedExisting": false}
    };
    rawdoc! {"lastErrorObject": last, "value": RawBson::Null, "ok": 1.0}
}
