//! Commands that the primary of the config servers carries out under a name of its own.

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, RequestOptions};
use bson::{RawDocument, RawDocumentBuf};

use crate::context::Context;

/// What belongs to the request and not to the command.
pub const GENERIC: &[&str] = &[
    "$db",
    "lsid",
    "$clusterTime",
    "txnNumber",
    "$readPreference",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
];

/// Sends the command on to the same database of the config servers.
pub async fn as_it_is(
    context: &Context<'_>,
    request_options: RequestOptions,
) -> Result<RawDocumentBuf, CommandError> {
    let request = context.request;
    let mut command = DocumentWriter::new();
    for element in banyan_document::elements(&request.body) {
        if !GENERIC.contains(&element.name()) {
            command.append_element(&element);
        }
    }
    let router = context.router;
    let options = request_options.deadline(context.deadline);
    let command = command.finish();
    let sent = router.config.command(options, &request.database, &command);
    let reply = sent.await?;
    router.gossip.observe(&reply);
    Ok(reply)
}

/// Sends the command on as `name`, with the value of its first field and all others.
pub async fn to_config(
    context: &Context<'_>,
    name: &str,
    renamed: &[(&str, &str)],
) -> Result<RawDocumentBuf, CommandError> {
    let mut command = DocumentWriter::new();
    for (index, element) in banyan_document::elements(&context.request.body).enumerate() {
        let own = element.name();
        let other = renamed
            .iter()
            .find(|(from, _)| *from == own)
            .map(|(_, to)| *to);
        match other {
            _ if index == 0 => command.append_element_as(name, &element),
            _ if GENERIC.contains(&own) => {}
            Some(other) => command.append_element_as(other, &element),
            None => command.append_element(&element),
        }
    }
    context.router.on_config("admin", &command.finish()).await
}

/// As [`to_config`], for a command that changes defaults or parameters of the cluster: this router goes
/// by the new ones at once.
pub async fn change_settings(
    context: &Context<'_>,
    name: &str,
) -> Result<RawDocumentBuf, CommandError> {
    let reply = to_config(context, name, &[]).await?;
    context.router.refresh_settings().await;
    Ok(reply)
}

/// The same of a parameter whose new value is not what the client wrote.
pub async fn change_parameter(
    context: &Context<'_>,
    name: &str,
    value: &RawDocument,
) -> Result<RawDocumentBuf, CommandError> {
    let mut command = DocumentWriter::new();
    command.begin_document("_configsvrSetClusterParameter");
    command.append_doc(name, value);
    command.end();
    let router = context.router;
    let reply = router.on_config("admin", &command.finish()).await?;
    router.refresh_settings().await;
    Ok(reply)
}
