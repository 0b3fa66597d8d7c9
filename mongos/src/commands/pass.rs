//! Commands that the primary of the config servers carries out under a name of its own.

use banyan_document::DocumentWriter;
use banyan_wire::CommandError;
use bson::RawDocumentBuf;

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
];

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
