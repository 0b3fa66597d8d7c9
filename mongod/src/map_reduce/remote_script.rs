//! Scripts of what a router computes: it has no engine of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_access::check::Access;
use banyan_execution::tickets::blocking;
use banyan_node::commands::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use banyan_node::context::CommandContext;
use banyan_query::JavaScript;
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, cstr, rawdoc};
use parking_lot::Mutex;

use super::hosts::hosts;
use crate::javascript::{Engine, Variables};

/// `{_runScript: 1, engine: <ObjectId>, request: {…}}` runs what `banyan_query`'s `JavaScript` is
/// asked to, with the variables that earlier requests of this engine have left; answers `value`, or
/// `values` and perhaps `failure` where several scripts are asked for.
pub static SPEC: CommandSpec = CommandSpec::new("_runScript", Run::Future(run))
    .access(Access::Member)
    .help("internal: a script of what a router computes")
    .needs(Needs::Readable)
    .fields(&["engine", "request"]);

/// The variables of so many engines are kept at most, and of none that was idle for so long.
const ENGINES_MAX: usize = 64;
const IDLE_MAX: Duration = Duration::from_secs(60);

struct Known {
    id: ObjectId,
    variables: Arc<Variables>,
    used: Instant,
}

/// In the order in which they were last used.
static KNOWN: Mutex<VecDeque<Known>> = Mutex::new(VecDeque::new());

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move { blocking(|| run_script(ctx)) })
}

fn run_script(ctx: &CommandContext<'_>) -> CommandResult {
    if !ctx.node.info.scripting {
        return Err(CommandError::new(
            ErrorCode::Location(31_264),
            "Cannot run server-side javascript without the javascript engine enabled",
        ));
    }
    let engine = ctx.required("engine")?;
    let RawBsonRef::ObjectId(id) = engine.value else {
        return Err(engine.wrong_type("type 'objectId'"));
    };
    let request = ctx.required("request")?.document()?;
    let variables = variables(id, || Arc::new(Variables::new(hosts(ctx.node))));
    let engine = Engine::with(variables, ctx.interrupt());
    let mut reply = RawDocumentBuf::new();
    if request.get_array("each").is_ok() {
        let answers = engine.each(request).map_err(banyan_node::errors::query)?;
        reply.append(cstr!("values"), RawArrayBuf::from_iter(answers.values));
        if let Some(failure) = answers.failure {
            let failure = rawdoc! { "code": failure.kind.code(), "message": failure.message };
            reply.append(cstr!("failure"), failure);
        }
    } else {
        let value = engine.run(request).map_err(banyan_node::errors::query)?;
        reply.append(cstr!("value"), value);
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn variables(id: ObjectId, make: impl FnOnce() -> Arc<Variables>) -> Arc<Variables> {
    let now = Instant::now();
    let mut forgotten = Vec::new();
    let mut known = KNOWN.lock();
    let at = known.iter().position(|known| known.id == id);
    let found = at.and_then(|at| known.remove(at));
    let variables = found.map_or_else(make, |found| found.variables);
    known.push_back(Known {
        id,
        variables: variables.clone(),
        used: now,
    });
    while let Some(first) = known.front()
        && (known.len() > ENGINES_MAX || now.duration_since(first.used) > IDLE_MAX)
    {
        forgotten.extend(known.pop_front());
    }
    drop(known);
    // What their hosts have of them ends here, without the lock.
    drop(forgotten);
    variables
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use banyan_script::{HostOptions, Hosts};

    use super::*;

    #[test]
    fn an_engine_is_known_again_until_many_others_were_used() {
        let options = HostOptions::new(PathBuf::new(), Vec::new(), PathBuf::new());
        let hosts = Hosts::new(options);
        let get = |id| variables(id, || Arc::new(Variables::new(&hosts)));
        let first = ObjectId::new();
        let had = get(first);
        assert!(Arc::ptr_eq(&had, &get(first)));
        for _ in 0..ENGINES_MAX {
            get(ObjectId::new());
        }
        assert!(!Arc::ptr_eq(&had, &get(first)));
        assert!(KNOWN.lock().len() <= ENGINES_MAX);
    }
}
