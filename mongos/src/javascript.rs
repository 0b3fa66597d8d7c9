//! The scripts of what the router computes itself. It has no engine: a shard runs them for it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use banyan_query::javascript::{self, Answers, Call, JavaScript, Running};
use banyan_query::{ErrorKind, QueryError};
use banyan_wire::{CommandError, ErrorCode, Outgoing, ReadMode, RequestOptions};
use bson::oid::ObjectId;
use bson::{RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::ending::Ending;
use crate::errors::failed;
use crate::router::Router;

/// The engine of one command: its scripts share variables with each other and with nobody else.
pub struct RemoteEngine {
    router: Arc<Router>,
    ending: Arc<Ending>,
    /// By this the shard knows the variables again.
    id: ObjectId,
    /// The shard that has them.
    shard: OnceLock<Arc<str>>,
    runtime: Handle,
}

impl fmt::Debug for RemoteEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEngine")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl RemoteEngine {
    /// Call on a runtime with several threads: a script is waited for on the thread that computes.
    /// `None` where clients may not send JavaScript.
    pub fn of(router: &Arc<Router>, ending: &Arc<Ending>) -> Option<Arc<dyn JavaScript>> {
        router.identity.scripting.then(|| {
            Arc::new(RemoteEngine {
                router: router.clone(),
                ending: ending.clone(),
                id: ObjectId::new(),
                shard: OnceLock::new(),
                runtime: Handle::current(),
            }) as _
        })
    }

    async fn call(&self, request: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
        let shard = match self.shard.get() {
            Some(shard) => shard.clone(),
            None => {
                let shards = self.router.shards.all();
                let Some(first) = shards.keys().next().cloned() else {
                    return Err(CommandError::new(
                        ErrorCode::ShardNotFound,
                        "there is no shard that could run a script",
                    ));
                };
                self.shard.get_or_init(|| first).clone()
            }
        };
        let mut command = rawdoc! { "_runScript": 1, "engine": self.id };
        command.append(cstr!("request"), request);
        let options = RequestOptions::read(ReadMode::Primary).deadline(self.ending.deadline());
        let outgoing = Outgoing::command("admin", &command);
        let answer = self.router.send(&shard, options, &outgoing).await?;
        let answer = answer.checked()?;
        Ok(answer.reply.to_owned())
    }

    fn ask(&self, request: &RawDocument) -> Result<RawDocumentBuf, QueryError> {
        let called = self.ending.while_awaited(self.call(request));
        block_in_place(|| self.runtime.block_on(called)).map_err(failed)
    }
}

impl JavaScript for RemoteEngine {
    fn run(&self, request: &RawDocument) -> Result<RawBson, QueryError> {
        let answer = self.ask(request)?;
        let value = answer.get("value").ok().flatten();
        Ok(value.map_or(RawBson::Null, RawBson::from))
    }

    fn begin_each(&self, calls: &[&Call]) -> Result<Box<dyn Running + '_>, QueryError> {
        let answer = self.ask(&javascript::each(calls))?;
        let values = answer.get_array("values").into_iter().flatten();
        let failure = answer.get_document("failure").ok();
        let failed = |failure: &RawDocument| {
            let code = failure.get_i32("code").unwrap_or_default();
            let message = failure.get_str("message").unwrap_or_default();
            QueryError::new(ErrorKind::Location(code.unsigned_abs()), message)
        };
        Ok(Box::new(Answers {
            values: values.map_while(Result::ok).map(RawBson::from).collect(),
            failure: failure.map(failed),
        }))
    }
}
