//! `replSetReconfig`: puts another configuration in place. `rs.add`, `rs.addArb` and `rs.remove`
//! are made of it.

use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params::Field;
use crate::replication::config::SetConfig;

pub static SPEC: CommandSpec = CommandSpec::new("replSetReconfig", Run::Future(run))
    .aliases(&["replsetreconfig"])
    .needs(Needs::Any)
    .admin_only()
    .help("changes the replica set's configuration")
    .fields(&["force"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let replication = &ctx.node.replication;
        replication.require_config()?;
        let value = ctx.argument().unwrap_or(bson::RawBsonRef::Null);
        let document = Field {
            command: ctx.spec.name,
            name: ctx.spec.name,
            value,
        }
        .document()?;
        let force = match ctx.field("force") {
            Some(field) => field.bool()?,
            None => false,
        };
        let config = SetConfig::parse(document)?;
        replication.reconfigure(ctx.node, config, force).await?;
        Ok(rawdoc! { "ok": 1.0 })
    })
}
