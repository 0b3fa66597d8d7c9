//! `top`: how long operations on each collection took since the start.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::raw::CString;
use bson::{RawDocumentBuf, cstr, rawdoc};

use super::coll_stats::number;
use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::top::{Kind, Spent, Usage};

pub static SPEC: CommandSpec = CommandSpec::new("top", Run::Inline(run))
    .access(Access::Cluster(Action::Top))
    .needs(Needs::Any)
    .admin_only()
    .lenient()
    .help("how long operations on each collection took");

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let catalog = ctx.node.replica.store.catalog();
    let mut named: Vec<_> = ctx
        .node
        .top
        .totals(&catalog)
        .into_iter()
        .filter_map(|(id, usage)| Some((catalog.by_id(id)?.namespace.clone(), usage)))
        .collect();
    named.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
    let mut totals = rawdoc! { "note": "all times in microseconds" };
    for (namespace, usage) in named {
        if let Ok(name) = CString::try_from(namespace.as_str()) {
            totals.append(name, described(&usage));
        }
    }
    Ok(rawdoc! { "totals": totals, "ok": 1.0 })
}

fn described(usage: &Usage) -> RawDocumentBuf {
    let mut out = RawDocumentBuf::new();
    out.append(cstr!("total"), spent(usage.total()));
    out.append(cstr!("readLock"), spent(usage.reads));
    out.append(cstr!("writeLock"), spent(usage.writes));
    for kind in Kind::ALL {
        let name = match kind {
            Kind::Queries => cstr!("queries"),
            Kind::GetMore => cstr!("getmore"),
            Kind::Insert => cstr!("insert"),
            Kind::Update => cstr!("update"),
            Kind::Remove => cstr!("remove"),
            Kind::Commands => cstr!("commands"),
        };
        out.append(name, spent(usage.of(kind)));
    }
    out
}

fn spent(spent: Spent) -> RawDocumentBuf {
    let long = |n: u64| number(i64::try_from(n).unwrap_or(i64::MAX));
    rawdoc! { "time": long(spent.micros), "count": long(spent.count) }
}
