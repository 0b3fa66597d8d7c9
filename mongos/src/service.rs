//! The router as a server: finds a request's command and runs it.

use std::sync::Arc;

use banyan_wire::{CommandError, Connection, ErrorCode, ReadPreference, Reply, Request, Service};
use bson::RawDocumentBuf;
use tokio::task::block_in_place;

use crate::commands::{self, Context};
use crate::router::Router;

impl Service for Router {
    fn is_vital(&self, name: &str) -> bool {
        commands::find(name).is_some_and(|spec| matches!(spec.name, "hello" | "ping" | "buildInfo"))
    }

    async fn call(self: &Arc<Self>, connection: &Arc<Connection>, request: Request) -> Reply {
        let completed = self.defaults.completed(&request);
        let context = Context {
            router: self,
            connection,
            request: completed.as_ref().unwrap_or(&request),
        };
        let answer = match self.gossip.hear(&request.body) {
            Ok(()) if ends_with_client(context.request) => tokio::select! {
                biased;
                answer = run(&context) => answer,
                // What was asked of the shards ends with the connections to them.
                () = connection.left().cancelled() => Err(CommandError::new(
                    ErrorCode::ClientDisconnect,
                    "the client's connection is gone",
                )),
            },
            Ok(()) => run(&context).await,
            Err(error) => Err(error),
        };
        let mut reply = answer.unwrap_or_else(|error| error.to_reply());
        self.gossip.attach(&mut reply);
        reply.into()
    }
}

/// A read that nobody waits for any more can be dropped wherever it is; a write goes to its end.
fn ends_with_client(request: &Request) -> bool {
    let Some(spec) = commands::find(&request.name) else {
        return false;
    };
    match spec.name {
        "find" | "getMore" | "count" | "distinct" | "explain" => true,
        "aggregate" => !request.get("pipeline").is_some_and(|pipeline| {
            let stages = pipeline.as_array().into_iter().flatten().flatten();
            let mut stages = stages.filter_map(|stage| stage.as_document());
            stages.any(|stage| {
                let has = |name| stage.get(name).is_ok_and(|field| field.is_some());
                has("$out") || has("$merge")
            })
        }),
        _ => false,
    }
}

async fn run(context: &Context<'_>) -> Result<RawDocumentBuf, CommandError> {
    let request = context.request;
    let Some(spec) = commands::find(&request.name) else {
        let text = format!("no such command: '{}'", request.name);
        return Err(CommandError::new(ErrorCode::CommandNotFound, text));
    };
    if spec.admin_only && request.database != "admin" {
        let text = format!("{} may only be run against the admin database.", spec.name);
        return Err(CommandError::new(ErrorCode::Unauthorized, text));
    }
    // Checked once, here; a write has none, whatever it says.
    if !matches!(spec.name, "insert" | "update" | "delete" | "findAndModify") {
        ReadPreference::of_command(&request.body)?;
    }
    let mut answer = (spec.run)(context);
    if is_light(spec.name, request) {
        return answer.await;
    }
    // Reading it may take long: the other connections of this worker are handed over meanwhile.
    std::future::poll_fn(|cx| block_in_place(|| answer.as_mut().poll(cx))).await
}

/// What is read in no time, whatever is in it.
fn is_light(command: &str, request: &Request) -> bool {
    const BYTES_MAX: usize = 4 * 1024;
    let documents = request
        .sequences
        .iter()
        .flat_map(|sequence| sequence.docs());
    let bytes: usize = documents.map(|document| document.as_bytes().len()).sum();
    !matches!(command, "aggregate" | "explain")
        && request.body.as_bytes().len() + bytes <= BYTES_MAX
}
