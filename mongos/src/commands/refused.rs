//! Commands of single members that make no sense through a router.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("replSetGetStatus", "not through a router", run!(refuse))
        .access(Access::Cluster(Action::ReplSetGetStatus)),
    CommandSpec::new("replSetGetConfig", "not through a router", run!(refuse))
        .access(Access::Cluster(Action::ReplSetGetConfig)),
    CommandSpec::new("replSetInitiate", "not through a router", run!(refuse))
        .access(Access::Cluster(Action::ReplSetConfigure)),
    CommandSpec::new("replSetReconfig", "not through a router", run!(refuse))
        .access(Access::Cluster(Action::ReplSetConfigure)),
    CommandSpec::new("replSetStepDown", "not through a router", run!(refuse))
        .access(Access::Cluster(Action::ReplSetStateChange)),
    CommandSpec::new("replSetFreeze", "not through a router", run!(refuse))
        .access(Access::Cluster(Action::ReplSetStateChange)),
    CommandSpec::new("compact", "not through a router", run!(refuse_compact))
        .access(Access::Collection(Action::Compact)),
];

async fn refuse_compact(_: &Context<'_>) -> CommandResult {
    Err(CommandError::new(
        ErrorCode::CommandNotSupported,
        "compact not allowed through mongos",
    ))
}

async fn refuse(context: &Context<'_>) -> CommandResult {
    let text = format!("{} is not supported through mongos", context.request.name);
    let error = CommandError::new(ErrorCode::NoReplicationEnabled, text);
    // Shells tell by this field that they talk to a router.
    Err(error.with_extra(rawdoc! {"info": "mongos"}))
}
