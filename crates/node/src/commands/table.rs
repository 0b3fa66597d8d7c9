//! The table of commands: what each is called, what it needs, which fields it knows.
//!
//! Everything that can be said about a command without running it is said here, as data, so that
//! the service can refuse a request before the command's own code sees it.

use std::collections::HashMap;
use std::future::Future;

use banyan_wire::CommandError;
use bson::RawDocumentBuf;

use crate::context::CommandContext;
use crate::counters::{CommandCounts, Counter, Sharded};
pub use crate::role::BoxFuture;

/// What a command answers: the reply without `operationTime` and `$clusterTime`, which the service
/// adds. `ok: 1` is part of it.
pub type CommandResult = Result<RawDocumentBuf, CommandError>;

/// Which state of the replica set member a command can be answered in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Any state, also before the set has been initiated.
    Any,
    /// Only the primary (or a standalone).
    Primary,
    /// The primary, or a secondary if the request's read preference allows it.
    Readable,
    /// A member whose data may be read, whatever the read preference says.
    Data,
}

/// How a command is run.
#[derive(Clone, Copy)]
pub enum Run {
    /// On the connection's task, without waiting for anything: commands that only look at memory.
    Inline(for<'a> fn(&'a CommandContext<'a>) -> CommandResult),
    /// Anything that waits or scans.
    Future(for<'a> fn(&'a CommandContext<'a>) -> BoxFuture<'a, CommandResult>),
    /// First the inline attempt, which declines with `None` when the request turns out to be more
    /// than a point operation; then the future.
    Either(
        for<'a> fn(&'a CommandContext<'a>) -> Option<CommandResult>,
        for<'a> fn(&'a CommandContext<'a>) -> BoxFuture<'a, CommandResult>,
    ),
}

/// One line of the table. Build it with [`CommandSpec::new`] and the setters, all `const`:
///
/// ```ignore
/// pub static SPEC: CommandSpec = CommandSpec::new("ping", Run::Inline(run)).needs(Needs::Any);
/// ```
pub struct CommandSpec {
    /// Today's spelling.
    pub name: &'static str,
    /// Other spellings, such as the lower-case ones of the 2.x shell.
    pub aliases: &'static [&'static str],
    pub help: &'static str,
    /// What messages about its fields call it: the name of MongoDB's parser for it.
    pub parsed_as: &'static str,
    pub writes: bool,
    pub needs: Needs,
    pub admin_only: bool,
    /// May be part of a multi-document transaction.
    pub in_transaction: bool,
    /// The privilege action it asks for, when access control is on.
    pub privilege: &'static str,
    /// The fields that it reads, next to the generic ones that the service knows.
    pub fields: &'static [&'static str],
    /// The fields that it accepts and that have no effect here.
    pub ignored: &'static [&'static str],
    /// Reading, planning or staging it may take long: unless it is clearly small, all of it runs
    /// with a ticket (see [`tickets`]).
    pub computes: bool,
    /// It only looks at memory, or waits, and others wait for it: connections that carry nothing
    /// else are served on threads that no query can occupy (see `banyan_wire::server`).
    pub vital: bool,
    /// Accepts any field, as some of MongoDB's oldest commands do.
    pub lenient: bool,
    pub run: Run,
}

impl CommandSpec {
    /// A read that any readable member answers, with no fields of its own.
    pub const fn new(name: &'static str, run: Run) -> CommandSpec {
        CommandSpec {
            name,
            aliases: &[],
            help: "",
            parsed_as: name,
            writes: false,
            needs: Needs::Readable,
            admin_only: false,
            in_transaction: false,
            privilege: name,
            fields: &[],
            ignored: &[],
            computes: false,
            vital: false,
            lenient: false,
            run,
        }
    }

    pub const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    pub const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    pub const fn parsed_as(mut self, name: &'static str) -> Self {
        self.parsed_as = name;
        self
    }

    /// Changes data: needs the primary, and takes a write concern.
    pub const fn writes(mut self) -> Self {
        self.writes = true;
        self.needs = Needs::Primary;
        self
    }

    pub const fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    pub const fn admin_only(mut self) -> Self {
        self.admin_only = true;
        self
    }

    pub const fn in_transaction(mut self) -> Self {
        self.in_transaction = true;
        self
    }

    pub const fn privilege(mut self, action: &'static str) -> Self {
        self.privilege = action;
        self
    }

    pub const fn fields(mut self, fields: &'static [&'static str]) -> Self {
        self.fields = fields;
        self
    }

    pub const fn ignored(mut self, ignored: &'static [&'static str]) -> Self {
        self.ignored = ignored;
        self
    }

    pub const fn computes(mut self) -> Self {
        self.computes = true;
        self
    }

    pub const fn vital(mut self) -> Self {
        self.vital = true;
        self
    }

    pub const fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    pub fn accepts(&self, field: &str) -> bool {
        self.lenient || self.fields.contains(&field) || self.ignored.contains(&field)
    }
}

/// The commands of this process by every spelling.
pub struct Table {
    by_name: HashMap<&'static str, (usize, &'static CommandSpec)>,
    /// By the places of the commands.
    counts: Sharded<Box<[CommandCounts]>>,
}

impl Table {
    /// The commands that every member has, and those that a role brings (a later one of the same
    /// name takes the place of an earlier one).
    pub fn new(
        built_in: &[&'static [&'static CommandSpec]],
        extra: &[&'static CommandSpec],
    ) -> Table {
        let mut by_name = HashMap::new();
        let built_in = built_in.iter().flat_map(|group| group.iter());
        let mut places = 0;
        for (place, spec) in built_in.chain(extra).enumerate() {
            places = place + 1;
            by_name.insert(spec.name, (place, *spec));
            for alias in spec.aliases {
                by_name.insert(*alias, (place, *spec));
            }
        }
        let counts = Sharded::new(|| (0..places).map(|_| CommandCounts::default()).collect());
        Table { by_name, counts }
    }

    pub fn find(&self, name: &str) -> Option<&'static CommandSpec> {
        self.locate(name).map(|(_, spec)| spec)
    }

    /// A command and its place among the counts.
    pub fn locate(&self, name: &str) -> Option<(usize, &'static CommandSpec)> {
        self.by_name.get(name).copied()
    }

    /// This thread's counts of the command at a place.
    pub fn counts(&self, place: usize) -> Option<&CommandCounts> {
        self.counts.local().get(place)
    }

    /// How often each command that was used has been run, and how often that failed; by name.
    pub fn used(&self) -> Vec<(&'static str, i64, i64)> {
        let mut used: Vec<_> = self
            .by_name
            .iter()
            .filter_map(|(name, (place, spec))| {
                let sum = |counter: fn(&CommandCounts) -> &Counter| {
                    self.counts.sum(|counts| counter(&counts[*place]))
                };
                let total = sum(|counts| &counts.total);
                (*name == spec.name && total > 0)
                    .then(|| (*name, total, sum(|counts| &counts.failed)))
            })
            .collect();
        used.sort_unstable();
        used
    }

    /// Every command once, by name.
    pub fn all(&self) -> Vec<&'static CommandSpec> {
        let mut all: Vec<_> = self
            .by_name
            .iter()
            .filter(|(name, (_, spec))| **name == spec.name)
            .map(|(_, (_, s))| *s)
            .collect();
        all.sort_by_key(|spec| spec.name);
        all
    }
}

/// A command that the members of a cluster give to each other's primaries. Routers pass fields on
/// that mean nothing to it.
pub const fn primary_only(
    name: &'static str,
    run: for<'a> fn(&'a CommandContext<'a>) -> BoxFuture<'a, CommandResult>,
) -> CommandSpec {
    CommandSpec::new(name, Run::Future(run))
        .needs(Needs::Primary)
        .admin_only()
        .lenient()
}

pub fn boxed<'a>(
    future: impl Future<Output = CommandResult> + Send + 'a,
) -> BoxFuture<'a, CommandResult> {
    Box::pin(future)
}
