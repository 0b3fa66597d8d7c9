//! `rotateCertificates`: connections that come from now on are shown the certificates that are in
//! the files by now.

use banyan_access::check::Access;
use banyan_execution::tickets::blocking;
use banyan_security::Action;
use banyan_wire::tls;
use bson::rawdoc;
use tracing::info;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("rotateCertificates", Run::Future(run))
    .access(Access::Cluster(Action::RotateCertificates))
    .needs(Needs::Any)
    .admin_only()
    .fields(&["message"])
    .help("reads the certificates again");

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let message = ctx.field("message").map(|field| field.str()).transpose()?;
        blocking(tls::operating::rotate)?;
        info!(reason = message, "the certificates were rotated");
        Ok(rawdoc! { "ok": 1.0 })
    })
}
