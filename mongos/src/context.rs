//! What every command of the router is, and what it runs with.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::identity::{self, Identity, UserDigest};
use banyan_wire::{CommandError, Connection, Request, RequestOptions};
use bson::RawDocumentBuf;
use tokio::time::Instant;

use crate::dispatch::request_options;
use crate::ending::Ending;
use crate::router::Router;

/// What a command runs with.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub router: &'a Arc<Router>,
    /// For commands that run or list others.
    pub commands: &'a CommandTable,
    pub connection: &'a Arc<Connection>,
    pub request: &'a Request,
    /// When the client's `maxTimeMS` ends.
    pub deadline: Option<Instant>,
}

impl Context<'_> {
    /// How the request, or one that is made for it, may be treated on its way to a shard.
    pub fn request_options(&self, writes: bool) -> RequestOptions {
        request_options(self.request, writes).deadline(self.deadline)
    }

    /// What ends the work that is done here for the command.
    pub fn ending(&self) -> Arc<Ending> {
        Ending::new(self.connection, self.deadline, &self.router.memory)
    }

    /// Who the client is, if that counts here.
    pub fn identity(&self) -> Option<Arc<Identity>> {
        let is_enforced = self.router.users.access.is_enforced();
        is_enforced.then(|| identity::known(self.connection))
    }

    /// Whom belongs what the command opens.
    pub fn owner(&self) -> Option<UserDigest> {
        self.identity().map(|identity| identity.owner().digest())
    }

    /// `database.collection` for the collection that the command's first field names.
    pub fn namespace(&self) -> Result<String, CommandError> {
        let collection = crate::fields::collection(self.request)?;
        Ok(format!("{}.{collection}", self.request.database))
    }
}

pub type CommandResult = Result<RawDocumentBuf, CommandError>;
pub type BoxFuture<'a> = Pin<Box<dyn Future<Output = CommandResult> + Send + 'a>>;

/// One line of the table.
pub struct CommandSpec {
    pub name: &'static str,
    /// Other spellings, such as the lower-case ones of the 2.x shell.
    pub aliases: &'static [&'static str],
    pub help: &'static str,
    pub admin_only: bool,
    /// Only there with `enableTestCommands`.
    pub for_tests: bool,
    /// It writes documents, and a client may number what it is to do, to send it again.
    pub retryable: bool,
    /// What it needs when access is controlled; denied until it says so.
    pub access: Access,
    pub run: for<'a> fn(&'a Context<'a>) -> BoxFuture<'a>,
}

impl CommandSpec {
    pub(crate) const fn new(
        name: &'static str,
        help: &'static str,
        run: for<'a> fn(&'a Context<'a>) -> BoxFuture<'a>,
    ) -> CommandSpec {
        CommandSpec {
            name,
            aliases: &[],
            help,
            admin_only: false,
            for_tests: false,
            retryable: false,
            access: Access::Unnamed,
            run,
        }
    }

    pub(crate) const fn aliases(mut self, aliases: &'static [&'static str]) -> CommandSpec {
        self.aliases = aliases;
        self
    }

    pub(crate) const fn access(mut self, access: Access) -> CommandSpec {
        self.access = access;
        self
    }

    pub(crate) const fn retryable(mut self) -> CommandSpec {
        self.retryable = true;
        self
    }

    pub(crate) const fn for_tests(mut self) -> CommandSpec {
        self.for_tests = true;
        self
    }

    pub(crate) const fn admin_only(mut self) -> CommandSpec {
        self.admin_only = true;
        self
    }
}

/// The commands by every spelling.
pub struct CommandTable {
    specs: Vec<&'static CommandSpec>,
    /// The places among them.
    by_name: HashMap<&'static str, usize>,
}

impl CommandTable {
    pub fn new(groups: &[&'static [CommandSpec]]) -> CommandTable {
        let specs: Vec<_> = groups.iter().copied().flatten().collect();
        let mut by_name = HashMap::new();
        for (place, spec) in specs.iter().enumerate() {
            by_name.insert(spec.name, place);
            by_name.extend(spec.aliases.iter().map(|alias| (*alias, place)));
        }
        CommandTable { specs, by_name }
    }

    /// A command and its place.
    pub fn find(&self, name: &str) -> Option<(usize, &'static CommandSpec)> {
        let place = *self.by_name.get(name)?;
        self.specs.get(place).map(|spec| (place, *spec))
    }

    /// All commands, in the order of their places.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &'static CommandSpec> + '_ {
        self.specs.iter().copied()
    }

    #[cfg(test)]
    pub fn spellings(&self) -> usize {
        self.by_name.len()
    }
}

/// A table line's function out of a command's `async fn`.
macro_rules! run {
    ($function:path) => {
        |context| Box::pin($function(context))
    };
}
pub(crate) use run;
