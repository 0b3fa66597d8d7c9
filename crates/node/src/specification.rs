//! What a command is: its line in the table, and the table.
//!
//! Everything that can be said about a command without running it is said in its line, as data, so that
//! the service can refuse a request before the command's own code sees it. How it is run (`R`) is up to
//! whoever runs it.

use std::collections::HashMap;

use banyan_access::check::Access;
use banyan_document::field;
use banyan_wire::{CommandError, Request};
use bson::RawDocument;

use crate::counters::{CommandCounts, Counter, Sharded};
use crate::generic::{self, Command, Generic};
use crate::params;

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

/// Whether a command that is no write of a client's accepts a write concern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakesConcern {
    Never,
    Always,
    /// If it writes its output somewhere, which the request says.
    WithOutput,
}

/// One line of the table. Build it with [`Specification::new`] and the setters, all `const`:
///
/// ```ignore
/// pub static SPEC: CommandSpec = CommandSpec::new("ping", Run::Inline(run)).needs(Needs::Any);
/// ```
pub struct Specification<R> {
    /// Today's spelling.
    pub name: &'static str,
    /// Other spellings, such as the lower-case ones of the 2.x shell.
    pub aliases: &'static [&'static str],
    pub help: &'static str,
    /// What messages about its fields call it: the name of MongoDB's parser for it.
    pub parsed_as: &'static str,
    pub writes: bool,
    /// It accepts a write concern, though it is no write of a client's.
    pub takes_concern: TakesConcern,
    pub needs: Needs,
    pub admin_only: bool,
    /// May be part of a multi-document transaction.
    pub in_transaction: bool,
    /// What it needs when access is controlled; denied until it says so.
    pub access: Access,
    /// The fields that it reads, next to the generic ones that the service knows.
    pub fields: &'static [&'static str],
    /// Those of them without which it is refused, before it is looked at what it names.
    pub required: &'static [&'static str],
    /// Checks the form of one of them, or of a generic one that its own parser reads. MongoDB does so
    /// field after field, in the order in which they are written, before it looks at what they say
    /// together.
    pub form: Option<CheckForm>,
    /// It can be explained. Checks the form of a generic field inside of an `explain`, where most of
    /// them may be anything.
    pub explained: Option<CheckForm>,
    /// What explains it, in the context of the `explain`, where that does not do so itself.
    pub explained_by: Option<R>,
    /// It is a batch of statements, each with a number of its own: the field that holds them.
    pub statements: Option<&'static str>,
    /// A driver may try it again, under a transaction number that says that it is the same write.
    pub retryable: bool,
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
    /// Only there with `enableTestCommands`.
    pub for_tests: bool,
    /// What runs it.
    pub run: R,
}

/// Refuses a field that has not the form that it has to have.
pub type CheckForm = fn(params::Field<'_>) -> Result<(), CommandError>;

impl<R: Copy> Specification<R> {
    /// A read that any readable member answers, with no fields of its own.
    pub const fn new(name: &'static str, run: R) -> Self {
        Specification {
            name,
            aliases: &[],
            help: "",
            parsed_as: name,
            writes: false,
            needs: Needs::Readable,
            admin_only: false,
            in_transaction: false,
            takes_concern: TakesConcern::Never,
            access: Access::Unnamed,
            fields: &[],
            required: &[],
            form: None,
            explained: None,
            explained_by: None,
            statements: None,
            retryable: false,
            ignored: &[],
            computes: false,
            vital: false,
            lenient: false,
            for_tests: false,
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

    /// A batch of writes, which this field holds.
    pub const fn writes_statements(mut self, field: &'static str) -> Self {
        self.statements = Some(field);
        self.writes().retryable()
    }

    pub const fn retryable(mut self) -> Self {
        self.retryable = true;
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

    pub const fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    pub const fn fields(mut self, fields: &'static [&'static str]) -> Self {
        self.fields = fields;
        self
    }

    pub const fn required(mut self, required: &'static [&'static str]) -> Self {
        self.required = required;
        self
    }

    pub const fn form(mut self, check: CheckForm) -> Self {
        self.form = Some(check);
        self
    }

    pub const fn explained(mut self, check: CheckForm) -> Self {
        self.explained = Some(check);
        self
    }

    pub const fn explained_by(mut self, run: R) -> Self {
        self.explained_by = Some(run);
        self
    }

    pub const fn ignored(mut self, ignored: &'static [&'static str]) -> Self {
        self.ignored = ignored;
        self
    }

    pub const fn takes_concern(mut self) -> Self {
        self.takes_concern = TakesConcern::Always;
        self
    }

    pub const fn takes_concern_with_output(mut self) -> Self {
        self.takes_concern = TakesConcern::WithOutput;
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

    pub const fn for_tests(mut self) -> Self {
        self.for_tests = true;
        self
    }

    pub fn accepts(&self, field: &str) -> bool {
        self.lenient || self.fields.contains(&field) || self.ignored.contains(&field)
    }

    /// The generic fields of a request for this command.
    pub fn generic<'r>(&self, request: &'r Request) -> Result<Generic<'r>, CommandError> {
        let generic = Generic::parse(
            request,
            self.as_generic(),
            |field| self.check_form(field),
            |name| self.accepts(name),
        )?;
        let lacks = |name: &str| {
            let value = request.get(name);
            value.is_none_or(params::is_null) && request.sequence(name).is_none()
        };
        self.check_required(lacks)?;
        Ok(generic)
    }

    /// Refuses what this command would refuse of its fields if it were not explained but run.
    pub fn check_explained(&self, body: &RawDocument) -> Result<(), CommandError> {
        for field in params::once(self.parsed_as, body).skip(1) {
            let field = field?;
            let is_own = !generic::is_generic(field, self.as_generic());
            self.check_form(field)?;
            if let Some(check) = self.explained.filter(|_| !is_own) {
                check(field)?;
            }
            if is_own && !self.accepts(field.name) {
                return Err(params::unknown_field(self.parsed_as, field.name));
            }
        }
        self.check_required(|name| field(body, name).is_none_or(params::is_null))
    }

    fn as_generic(&self) -> Command {
        Command {
            parsed_as: self.parsed_as,
            writes: self.writes,
            takes_concern: self.writes || self.takes_concern != TakesConcern::Never,
            has_statements: self.statements.is_some(),
        }
    }

    fn check_form(&self, field: params::Field<'_>) -> Result<(), CommandError> {
        self.form.map_or(Ok(()), |check| check(field))
    }

    fn check_required(&self, lacks: impl Fn(&str) -> bool) -> Result<(), CommandError> {
        match self.required.iter().find(|name| lacks(name)) {
            Some(name) => Err(params::missing_field(self.parsed_as, name)),
            None => Ok(()),
        }
    }
}

/// The commands of this process by every spelling.
pub struct Table<R: 'static> {
    by_name: HashMap<&'static str, (usize, &'static Specification<R>)>,
    /// By the places of the commands.
    counts: Sharded<Box<[CommandCounts]>>,
}

impl<R> Table<R> {
    /// The commands that every member has, and those that a role brings (a later one of the same
    /// name takes the place of an earlier one). `tests`: those for tests as well.
    pub fn new(
        built_in: &[&'static [&'static Specification<R>]],
        extra: &[&'static Specification<R>],
        tests: bool,
    ) -> Self {
        let mut by_name = HashMap::new();
        let built_in = built_in.iter().flat_map(|group| group.iter());
        let there = |spec: &&&'static Specification<R>| tests || !spec.for_tests;
        let mut places = 0;
        for (place, spec) in built_in.chain(extra).filter(there).enumerate() {
            places = place + 1;
            by_name.insert(spec.name, (place, *spec));
            for alias in spec.aliases {
                by_name.insert(*alias, (place, *spec));
            }
        }
        let counts = Sharded::new(|| (0..places).map(|_| CommandCounts::default()).collect());
        Table { by_name, counts }
    }

    pub fn find(&self, name: &str) -> Option<&'static Specification<R>> {
        self.locate(name).map(|(_, spec)| spec)
    }

    /// A command and its place among the counts.
    pub fn locate(&self, name: &str) -> Option<(usize, &'static Specification<R>)> {
        self.by_name.get(name).copied()
    }

    /// This thread's counts of the command at a place.
    pub fn counts(&self, place: usize) -> Option<&CommandCounts> {
        self.counts.local().get(place)
    }

    /// How often each command that was used has been run, has failed, and was rejected; by name.
    pub fn used(&self) -> Vec<(&'static str, [i64; 3])> {
        let mut used: Vec<_> = self
            .by_name
            .iter()
            .filter_map(|(name, (place, spec))| {
                let sum = |counter: fn(&CommandCounts) -> &Counter| {
                    self.counts.sum(|counts| counter(&counts[*place]))
                };
                let total = sum(|counts| &counts.total);
                let (failed, rejected) = (sum(|c| &c.failed), sum(|c| &c.rejected));
                let is_used = *name == spec.name && total > 0;
                is_used.then_some((*name, [total, failed, rejected]))
            })
            .collect();
        used.sort_unstable();
        used
    }

    /// Every command once, by name.
    pub fn all(&self) -> Vec<&'static Specification<R>> {
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
