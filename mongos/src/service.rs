//! The router as a server: finds a request's command and runs it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use banyan_access::api_version::ApiParameters;
use banyan_access::audit::{self, Actor};
use banyan_access::audit_config;
use banyan_access::check::{self, Access, Check};
use banyan_access::identity::{self, Identity};
use banyan_access::impersonation;
use banyan_access::sessions::{self, Naming};
use banyan_process::figures::Ending;
use banyan_security::{Action, Resource};
use banyan_wire::behalf::on_behalf_of;
use banyan_wire::params::{self, Field};
use banyan_wire::{
    CommandError, Connection, ErrorCode, ReadPreference, Reply, Request, Service, StrangerLimits,
};
use banyan_wire::{login, session_id};
use bson::{RawBsonRef, RawDocumentBuf};
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::collection_uuid;
use crate::commands::COMMANDS;
use crate::context::{CommandSpec, Context};
use crate::ending::while_awaited;
use crate::errors::expired;
use crate::failing;
use crate::fields;
use crate::query_shapes;
use crate::router::Router;
use crate::scripting;

/// What waits for a shard ends with `maxTimeMS` by itself, and then closes what it has opened
/// elsewhere. Whatever else is waited for (the config servers, another task's refresh) is cut off
/// this much later.
const GRACE: Duration = Duration::from_millis(100);

impl Service for Router {
    fn is_vital(&self, name: &str) -> bool {
        COMMANDS
            .find(name)
            .is_some_and(|(_, spec)| is_greeting(spec.name))
    }

    fn stranger_limits(&self, connection: &Connection) -> Option<StrangerLimits> {
        let controls = self.users.access.is_enforced();
        let is_stranger = controls && !identity::is_authenticated(connection);
        is_stranger.then_some(StrangerLimits::LOGIN)
    }

    fn closed(&self, connection: &Connection) {
        audit::closed(connection);
    }

    async fn call(self: &Arc<Self>, connection: &Arc<Connection>, request: Request) -> Reply {
        let completed = self.defaults.completed(&request);
        let request = completed.as_ref().unwrap_or(&request);
        let may_bypass = || {
            let identity = identity::known(connection);
            let bypass = Action::BypassDefaultMaxTimeMS;
            self.users.access.is_enforced() && identity.allows(bypass, Resource::Cluster)
        };
        let timed = self.cluster_parameters.timed(request, may_bypass);
        let request = timed.as_ref().unwrap_or(request);
        let answer = match deadline(self, request) {
            Ok(deadline) => {
                let context = Context {
                    router: self,
                    commands: &COMMANDS,
                    connection,
                    request,
                    deadline,
                };
                run_for_client(&context).await
            }
            Err(error) => Err(error),
        };
        let mut reply = answer.unwrap_or_else(|error| error.to_reply());
        self.gossip.attach(&self.users, connection, &mut reply);
        reply.into()
    }
}

/// A read that nobody waits for any more can be dropped wherever it is. What writes its results is
/// ended where it reads and computes ([`crate::ending`]), and a write goes to its end.
fn ends_with_client(request: &Request) -> bool {
    let Some((_, spec)) = COMMANDS.find(&request.name) else {
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

/// When the client's `maxTimeMS` ends. A `getMore` has what its cursor's command left of it; what it
/// says itself is how long to wait for more documents.
fn deadline(router: &Router, request: &Request) -> Result<Option<Instant>, CommandError> {
    let value = match request.get("maxTimeMS") {
        None | Some(RawBsonRef::Null) => return Ok(None),
        Some(_) if request.name == "getMore" => return Ok(None),
        Some(value) => value,
    };
    let milliseconds = params::max_time_ms(Field {
        command: "",
        name: "maxTimeMS",
        value,
    })?;
    let time = Some(milliseconds).filter(|milliseconds| *milliseconds > 0);
    let time = time.map(Duration::from_millis);
    let deadline = router.fail_points.deadline(Instant::now().into_std(), time);
    Ok(deadline.map(Instant::from_std))
}

/// Runs a command for as long as its client is there to be answered.
async fn run_for_client(context: &Context<'_>) -> Result<RawDocumentBuf, CommandError> {
    if !ends_with_client(context.request) {
        return run_in_time(context).await;
    }
    while_awaited(context.connection, run_in_time(context)).await
}

async fn run_in_time(context: &Context<'_>) -> Result<RawDocumentBuf, CommandError> {
    let Some(deadline) = context.deadline else {
        return run(context).await;
    };
    if deadline <= Instant::now() {
        return Err(expired());
    }
    match tokio::time::timeout_at(deadline + GRACE, run(context)).await {
        Ok(answer) => answer,
        Err(_) => Err(expired()),
    }
}

async fn run(context: &Context<'_>) -> Result<RawDocumentBuf, CommandError> {
    let request = context.request;
    let figures = &context.router.figures;
    let tests = context.router.has_test_commands.load(Ordering::Relaxed);
    let found = context.commands.find(&request.name);
    let Some((place, spec)) = found.filter(|(_, spec)| tests || !spec.for_tests) else {
        figures.local().unknown_commands.add(1);
        let text = format!("no such command: '{}'", request.name);
        return Err(CommandError::new(ErrorCode::CommandNotFound, text));
    };
    let result = failing::run(context, spec, run_found(context, spec)).await;
    let ending = match &result {
        Ok(_) => Ending::Well,
        Err(error) if error.code == ErrorCode::QueryRejectedBySettings => Ending::Rejected,
        Err(_) => Ending::Failed,
    };
    figures.local().note(place, spec.name, request, ending);
    result
}

async fn run_found(
    context: &Context<'_>,
    spec: &CommandSpec,
) -> Result<RawDocumentBuf, CommandError> {
    let request = context.request;
    if spec.admin_only && request.database != "admin" {
        let text = format!("{} may only be run against the admin database.", spec.name);
        return Err(CommandError::new(ErrorCode::Unauthorized, text));
    }
    if !context.connection.is_internal() {
        let required = context.router.requires_api_version.load(Ordering::Relaxed);
        ApiParameters::check(request, spec.name, required)?;
    }
    let client = authorize(context, spec).await?;
    let Context {
        router, connection, ..
    } = *context;
    let heard = router.gossip.hear(&router.users, connection, &request.body);
    heard.await?;
    // Checked once, here; a write has none, whatever it says.
    if !spec.retryable {
        ReadPreference::of_command(&request.body)?;
    }
    if !context.router.identity.scripting {
        scripting::check(request)?;
    }
    let began = Instant::now();
    let notes = query_shapes::note(context, spec.name)?;
    let told = Context {
        request: notes.request.as_ref().unwrap_or(request),
        ..*context
    };
    let mut answer = match collection_uuid::is_asked(request) {
        true => Box::pin(collection_uuid::run(&told, spec)),
        false => (spec.run)(&told),
    };
    let answer = async {
        if is_light(spec.name, request) {
            return answer.await;
        }
        // Reading it may take long: the other connections of this worker are handed over meanwhile.
        std::future::poll_fn(|cx| block_in_place(|| answer.as_mut().poll(cx))).await
    };
    let outcome = match client {
        Some(client) => on_behalf_of(Some(client), answer).await,
        None => answer.await,
    };
    notes.settle(context, began.into_std(), outcome)
}

/// Whether the client may do this, and what shards are told of whom it is done for.
async fn authorize(
    context: &Context<'_>,
    spec: &CommandSpec,
) -> Result<Option<Arc<RawDocumentBuf>>, CommandError> {
    let Context {
        connection,
        request,
        ..
    } = *context;
    let users = &context.router.users;
    if !users.access.has_users() {
        return Ok(None);
    }
    let identity = users.identity(connection).await;
    let admitted = admit(context, spec, &identity).await;
    if audit::is_on() && users.access.is_enforced() {
        let refused = admitted.as_ref().err();
        let parameter = || context.router.audits_successes.load(Ordering::Relaxed);
        let is_noted = || audit_config::notes_successes(parameter) && !tells_who(spec.name);
        if refused.is_some() || is_noted() {
            audit::authorization(connection, &Actor::of(&identity), request, refused);
        }
    }
    admitted?;
    // Who has not logged in and is let in all the same makes the first user, as nobody; what is asked
    // for a login is asked by the router itself.
    let as_nobody = users.access.is_enforced() && !matches!(spec.access, Access::Anyone);
    let is_told = identity.is_authenticated() || as_nobody;
    Ok(is_told.then(|| impersonation::of(&identity)))
}

async fn admit(
    context: &Context<'_>,
    spec: &CommandSpec,
    identity: &Identity,
) -> Result<(), CommandError> {
    let request = context.request;
    let users = &context.router.users;
    // No router is another one's client, so nobody has a reason to speak for others here.
    if request.get(impersonation::FIELD).is_some() {
        return Err(impersonation::refused());
    }
    if !users.access.is_enforced() {
        return Ok(());
    }
    if request.get(impersonation::BYPASS).is_some() {
        return Err(impersonation::bypass_refused());
    }
    let needs_login = !matches!(spec.access, Access::Anyone);
    let localhost = needs_login
        && !identity.is_authenticated()
        && users.is_localhost_exception(context.connection).await;
    let check = Check::new(identity, localhost, request);
    check::admit(&check, spec.access, request)?;
    match request.get("lsid") {
        // Shards believe a router whose session it is.
        Some(RawBsonRef::Document(lsid)) if fields::get(lsid, "uid").is_some() => {
            let (lsid, owner) = (session_id::parse(lsid)?, identity.owner());
            sessions::resolve(lsid, Some(owner), identity, Naming::Members).map(drop)
        }
        _ => Ok(()),
    }
}

/// What only tells and asks who somebody is is not worth a line of the audit log.
fn tells_who(command: &str) -> bool {
    is_greeting(command) || login::is_step(command)
}

fn is_greeting(command: &str) -> bool {
    matches!(command, "hello" | "ping" | "buildInfo")
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
