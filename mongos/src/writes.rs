//! `insert`, `update` and `delete` batches, split by shard.
//!
//! A batch that one shard can take whole is passed on as it came. Otherwise the statements are
//! sent in child batches: ordered ones run by run, each run being statements that follow each
//! other and go to the same shard; unordered ones to all shards at once. A shard that objects to
//! its version has not run what it objects to, so those statements are planned again with a newer
//! route. Where a part of the shards has run a statement by then, the others run it for what none
//! of them owned, so that a document that moves meanwhile is met exactly once ([`parts`]). A statement that only one of several shards is to carry out goes by
//! itself ([`crate::without_shard_key`]). Statements carry their numbers (`stmtIds`), so that a
//! retried batch is recognised statement by statement wherever they end up.

mod outcome;
mod parts;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, ErrorCode, Outgoing};
use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use futures::future::join_all;

use self::outcome::{Outcome, retried, with_index};
use self::parts::{Limits, Part, Ran};
use crate::answer::Answer;
use crate::catalog::Route;
use crate::commands::forward::{forward_write, passed_on};
use crate::context::Context;
use crate::dispatch::StaleRetries;
use crate::fields;
use crate::targeting::{self, Target};
use crate::without_shard_key::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    pub fn batch_field(self) -> &'static str {
        match self {
            Kind::Insert => "documents",
            Kind::Update => "updates",
            Kind::Delete => "deletes",
        }
    }

    fn target(self, route: &Route, statement: &RawDocument) -> Result<Target, CommandError> {
        match self {
            Kind::Insert => targeting::of_insert(route, statement),
            Kind::Update => targeting::of_update(route, statement),
            Kind::Delete => targeting::of_delete(route, statement),
        }
    }
}

/// A batch on its way.
pub struct Batch<'a> {
    context: &'a Context<'a>,
    kind: Kind,
    statements: Vec<Cow<'a, RawDocument>>,
    ordered: bool,
    /// The statements of a retryable write are numbered.
    numbers: Option<Vec<i32>>,
    outcome: Outcome,
    /// The statements that have not run everywhere yet, and where they have.
    left: Vec<usize>,
    ran: HashMap<usize, Vec<Ran>>,
    /// Numbered statements of which a shard has told that it changed a document. One that knows
    /// about that from another does not count once more.
    counted: HashSet<usize>,
}

/// Statements that go to one shard together.
struct Child {
    shard: Arc<str>,
    indexes: Vec<usize>,
    limits: Option<Limits>,
}

impl Child {
    fn of_one(part: Part, index: usize) -> Child {
        Child {
            shard: part.shard,
            indexes: vec![index],
            limits: part.limits,
        }
    }
}

/// How a statement is sent.
enum Plan {
    Parts(Vec<Part>),
    /// Any of several shards carries it out.
    OnAny,
}

/// What is sent next: batches, and then statements that any of several shards carries out.
struct Next {
    children: Vec<Child>,
    on_any: Vec<usize>,
}

/// What became of a child batch.
enum Sent {
    Ran,
    /// Nothing ran, or only a part: the route has to be read again.
    Stale(CommandError),
}

impl<'a> Batch<'a> {
    pub fn new(context: &'a Context<'a>, kind: Kind) -> Result<Batch<'a>, CommandError> {
        let request = context.request;
        let statements = request.batch(kind.batch_field())?;
        if statements.is_empty() {
            let text = "Write batch sizes must be between 1 and 100000. Got 0 operations.";
            return Err(CommandError::new(ErrorCode::InvalidLength, text));
        }
        match kind {
            Kind::Insert => {}
            Kind::Update => statements
                .iter()
                .try_for_each(|s| targeting::check_update(s))?,
            Kind::Delete => statements
                .iter()
                .try_for_each(|s| targeting::check_delete(s))?,
        }
        let ordered = request.get("ordered").is_none_or(banyan_document::is_true);
        let numbers = match request.get("txnNumber") {
            Some(_) => Some(statement_numbers(context, statements.len())?),
            None => None,
        };
        Ok(Batch {
            context,
            kind,
            left: (0..statements.len()).collect(),
            statements: statements.into_iter().map(Cow::Borrowed).collect(),
            ordered,
            numbers,
            outcome: Outcome::default(),
            ran: HashMap::new(),
            counted: HashSet::new(),
        })
    }

    /// Whether a collection may come into being through this batch.
    pub fn may_create(&self) -> bool {
        match self.kind {
            Kind::Insert => true,
            Kind::Update => self
                .statements
                .iter()
                .any(|s| fields::get_flag(s, "upsert")),
            Kind::Delete => false,
        }
    }

    /// The shard that takes the whole batch as it came, if there is one.
    pub fn only_shard(&mut self, route: &Route) -> Option<Arc<str>> {
        if !route.is_sharded() {
            return Some(route.database.primary.clone());
        }
        self.give_ids();
        if self
            .statements
            .iter()
            .any(|statement| matches!(statement, Cow::Owned(_)))
        {
            return None;
        }
        let mut targets = self
            .statements
            .iter()
            .map(|statement| self.kind.target(route, statement));
        let Ok(Target::One(first)) = targets.next()? else {
            return None;
        };
        let same = |target| matches!(target, Ok(Target::One(shard)) if shard == first);
        targets.all(same).then_some(first)
    }

    /// A document's `_id` may decide where it goes, so it has to be there before.
    fn give_ids(&mut self) {
        if self.kind != Kind::Insert {
            return;
        }
        for statement in &mut self.statements {
            if fields::get(statement, "_id").is_none() {
                let mut document = DocumentWriter::new();
                document.append_oid("_id", ObjectId::new());
                document.append_all(statement);
                *statement = Cow::Owned(document.finish());
            }
        }
    }

    /// Runs what is left with this route; `Some` says that the route is stale.
    async fn run(&mut self, route: &Arc<Route>) -> Result<Option<CommandError>, CommandError> {
        self.give_ids();
        let mut stale = None;
        loop {
            self.settle(route);
            if self.left.is_empty() || stale.is_some() || self.is_stopped() {
                return Ok(stale);
            }
            let Next { children, on_any } = if self.ordered {
                self.next_run(route)
            } else {
                self.split(route)
            };
            let sends = children.iter().map(|child| self.send(route, child));
            let answers = join_all(sends).await;
            if let Some(error) = self.refusal(&answers) {
                return Err(error);
            }
            for (child, answer) in children.iter().zip(answers) {
                if let Sent::Stale(error) = self.take_answer(route, child, answer)? {
                    stale = Some(error);
                }
            }
            for index in on_any {
                if stale.is_some() {
                    break;
                }
                if let Sent::Stale(error) = self.run_on_any(route, index).await? {
                    stale = Some(error);
                }
            }
        }
    }

    /// Crosses off what failed, and what has run on every shard that it goes to.
    fn settle(&mut self, route: &Arc<Route>) {
        let Batch {
            left,
            outcome,
            ran,
            statements,
            kind,
            ..
        } = self;
        left.retain(|&index| {
            if outcome.errors.contains_key(&index) {
                return false;
            }
            let Some(ran) = ran.get(&index) else {
                return true;
            };
            let target = kind.target(route, &statements[index]);
            target.is_ok_and(|target| !parts::left_of(route, target.shards(), ran).is_empty())
        });
    }

    fn is_stopped(&self) -> bool {
        self.ordered && !self.outcome.errors.is_empty()
    }

    fn plan(&mut self, route: &Arc<Route>, index: usize) -> Option<Plan> {
        match self.kind.target(route, &self.statements[index]) {
            Ok(Target::AnyOf(_)) => Some(Plan::OnAny),
            Ok(target) => {
                let ran = self.ran.get(&index).map_or(&[][..], Vec::as_slice);
                let parts = parts::left_of(route, target.shards(), ran);
                Some(Plan::Parts(parts))
            }
            Err(error) => {
                self.fail(index, &error);
                None
            }
        }
    }

    /// Runs a statement on whichever shard has a document for it.
    async fn run_on_any(&mut self, route: &Arc<Route>, index: usize) -> Result<Sent, CommandError> {
        let statement = &self.statements[index];
        let Ok(Target::AnyOf(shards)) = self.kind.target(route, statement) else {
            return Ok(Sent::Ran);
        };
        let write = Write {
            context: self.context,
            route,
            shards: &shards,
            upsert: self.kind == Kind::Update && fields::get_flag(statement, "upsert"),
            request: &|dropped, added| self.outgoing(&[index], dropped, added.to_owned()),
        };
        let answer = [write.run().await];
        if let Some(error) = self.refusal(&answer) {
            return Err(error);
        }
        let [answer] = answer;
        let shard = match &answer {
            Ok(answer) => answer.shard.clone(),
            Err(_) => route.database.primary.clone(),
        };
        let child = Child {
            shard,
            indexes: vec![index],
            limits: None,
        };
        let sent = self.take_answer(route, &child, answer)?;
        if matches!(sent, Sent::Ran) {
            self.left.retain(|left| *left != index);
        }
        Ok(sent)
    }

    /// The next statements of an ordered batch that can go together.
    fn next_run(&mut self, route: &Arc<Route>) -> Next {
        let mut run: Option<Child> = None;
        let mut on_any = Vec::new();
        for index in self.left.clone() {
            let parts = match self.plan(route, index) {
                Some(Plan::Parts(parts)) => parts,
                Some(Plan::OnAny) => {
                    if run.is_none() {
                        on_any.push(index);
                    }
                    break;
                }
                None => break,
            };
            let alone = parts.len() > 1 || self.ran.contains_key(&index);
            match &mut run {
                None if alone => {
                    let child = |part| Child::of_one(part, index);
                    return Next {
                        children: parts.into_iter().map(child).collect(),
                        on_any,
                    };
                }
                None => run = parts.into_iter().map(|p| Child::of_one(p, index)).next(),
                Some(run) if !alone && parts.iter().all(|part| part.shard == run.shard) => {
                    run.indexes.push(index);
                }
                Some(_) => break,
            }
        }
        // A statement that can't be sent ends an ordered batch, but those before it run.
        self.left
            .retain(|index| !self.outcome.errors.contains_key(index));
        Next {
            children: run.into_iter().collect(),
            on_any,
        }
    }

    /// All statements of an unordered batch by shard.
    fn split(&mut self, route: &Arc<Route>) -> Next {
        let mut children = Vec::new();
        let mut on_any = Vec::new();
        let mut by_shard: BTreeMap<Arc<str>, Vec<usize>> = BTreeMap::new();
        for index in self.left.clone() {
            let parts = match self.plan(route, index) {
                Some(Plan::Parts(parts)) => parts,
                Some(Plan::OnAny) => {
                    on_any.push(index);
                    continue;
                }
                None => continue,
            };
            for part in parts {
                if part.limits.is_some() {
                    children.push(Child::of_one(part, index));
                } else {
                    by_shard.entry(part.shard).or_default().push(index);
                }
            }
        }
        self.left
            .retain(|index| !self.outcome.errors.contains_key(index));
        children.extend(by_shard.into_iter().map(|(shard, indexes)| Child {
            shard,
            indexes,
            limits: None,
        }));
        Next { children, on_any }
    }

    async fn send(&self, route: &Arc<Route>, child: &Child) -> Result<Answer, CommandError> {
        let versions = match &child.limits {
            Some(limits) => limits.versions(route, &child.shard),
            None => route.versions(&child.shard),
        };
        let outgoing = self.outgoing(&child.indexes, &[], versions);
        self.context
            .router
            .send(&child.shard, self.context.request_options(true), &outgoing)
            .await
    }

    /// The request with these statements only.
    fn outgoing(&self, indexes: &[usize], dropped: &[&str], mut added: RawDocumentBuf) -> Outgoing {
        if let Some(numbers) = &self.numbers {
            let own = indexes.iter().map(|&index| numbers[index]);
            added.append(cstr!("stmtIds"), RawArrayBuf::from_iter(own));
        }
        let replaced = [self.kind.batch_field(), "stmtIds", "stmtId"];
        let statements = indexes
            .iter()
            .map(|&index| self.statements[index].as_bytes());
        let body = &self.context.request.body;
        passed_on(body, &[&replaced, dropped].concat(), &added)
            .sequence(self.kind.batch_field(), statements)
    }

    /// Counts what a child batch did.
    fn take_answer(
        &mut self,
        route: &Arc<Route>,
        child: &Child,
        answer: Result<Answer, CommandError>,
    ) -> Result<Sent, CommandError> {
        match answer.and_then(Answer::checked) {
            Ok(answer) => Ok(self.take_reply(route, child, &answer.reply)),
            Err(error) if error.code.is_stale_routing() => Ok(Sent::Stale(error)),
            // A driver sends a numbered batch again, and what has run is not run twice.
            Err(error) if self.numbers.is_some() && error.labels.contains(&RETRYABLE) => Err(error),
            Err(error) => {
                let told: &[usize] = if self.ordered {
                    &child.indexes[..1]
                } else {
                    &child.indexes
                };
                for &index in told {
                    self.fail(index, &error);
                }
                Ok(Sent::Ran)
            }
        }
    }

    /// What is wrong with the request as a whole, which is no statement's error: the shards that were
    /// asked first have said so before they did anything.
    fn refusal(&self, answers: &[Result<Answer, CommandError>]) -> Option<CommandError> {
        if !self.ran.is_empty() || !self.outcome.errors.is_empty() {
            return None;
        }
        let mut errors = answers.iter().map(|answer| match answer {
            Ok(answer) => answer.error(),
            Err(_) => None,
        });
        let first = errors.next()??;
        let is_refused = |error: &CommandError| is_of_request(error.code);
        let all = is_refused(&first) && errors.all(|error| error.is_some_and(|e| is_refused(&e)));
        all.then_some(first)
    }

    fn take_reply(&mut self, route: &Arc<Route>, child: &Child, reply: &RawDocument) -> Sent {
        let again = self.counted_again(child, reply);
        let outcome = &mut self.outcome;
        outcome.n += fields::get_number(reply, "n").unwrap_or(0) - again;
        let modified = fields::get_number(reply, "nModified").unwrap_or(0);
        outcome.modified += (modified - again).max(0);
        for entry in fields::documents(reply, "upserted") {
            if let (Some(index), Some(id)) = (own_index(child, entry), fields::get(entry, "_id")) {
                outcome.upserted.insert(index, id.into());
            }
        }
        if let Some(RawBsonRef::Document(error)) = fields::get(reply, "writeConcernError") {
            outcome
                .concern_error
                .get_or_insert_with(|| error.to_owned());
        }
        for id in retried(reply) {
            if !outcome.retried.contains(&id) {
                outcome.retried.push(id);
            }
        }
        let (mut stale, mut failed) = (None, Vec::new());
        for entry in fields::documents(reply, "writeErrors") {
            let Some(index) = own_index(child, entry) else {
                continue;
            };
            failed.push(index);
            let code = fields::get_number(entry, "code").unwrap_or(0) as i32;
            let code = ErrorCode::from_code(code);
            if code.is_stale_routing() {
                let text = entry.get_str("errmsg").unwrap_or_default();
                stale = Some(CommandError::new(code, text));
            } else {
                outcome
                    .errors
                    .entry(index)
                    .or_insert_with(|| with_index(entry, index));
            }
        }
        // An ordered batch ran up to its first error, an unordered one everything else.
        let stopped_at = failed.first().copied().filter(|_| self.ordered);
        let ran = child
            .indexes
            .iter()
            .copied()
            .take_while(|&index| Some(index) != stopped_at);
        for index in ran.filter(|index| !failed.contains(index)) {
            self.ran.entry(index).or_default().push(Ran {
                shard: child.shard.clone(),
                route: route.clone(),
            });
        }
        stale.map_or(Sent::Ran, Sent::Stale)
    }

    /// How many of the documents that a shard tells of are counted already: numbered statements
    /// that it knows from the one that did them.
    fn counted_again(&mut self, child: &Child, reply: &RawDocument) -> i64 {
        let Some(numbers) = &self.numbers else {
            return 0;
        };
        let mut again = 0;
        let mut told = false;
        let mut count = |index: usize| {
            told = true;
            again += i64::from(!self.counted.insert(index));
        };
        let retried: HashSet<i32> = retried(reply).collect();
        if !retried.is_empty() {
            let known = child.indexes.iter().copied();
            known
                .filter(|&index| retried.contains(&numbers[index]))
                .for_each(&mut count);
        }
        if let ([index], false) = (child.indexes.as_slice(), told)
            && fields::get_number(reply, "n").unwrap_or(0) > 0
        {
            self.counted.insert(*index);
        }
        again
    }

    fn fail(&mut self, index: usize, error: &CommandError) {
        let entry = rawdoc! {
            "index": index as i32,
            "code": error.code.code(),
            "errmsg": error.message.as_str(),
        };
        self.outcome.errors.entry(index).or_insert(entry);
    }

    fn reply(self) -> RawDocumentBuf {
        self.outcome.reply(self.kind == Kind::Update, self.ordered)
    }
}

/// Whether an error of a whole command is about how the request is written.
fn is_of_request(code: ErrorCode) -> bool {
    // What has a number alone is what parsers say.
    matches!(
        code,
        ErrorCode::TypeMismatch
            | ErrorCode::FailedToParse
            | ErrorCode::BadValue
            | ErrorCode::InvalidLength
            | ErrorCode::InvalidOptions
            | ErrorCode::Location(_)
    )
}

const RETRYABLE: &str = "RetryableWriteError";

/// The numbers of the statements: those that the client gave, or their places in the batch.
fn statement_numbers(context: &Context<'_>, count: usize) -> Result<Vec<i32>, CommandError> {
    let request = context.request;
    let given = |name| request.get(name).filter(|value| *value != RawBsonRef::Null);
    let wrong = |name: &str, value: RawBsonRef<'_>, expected: &str| {
        let found = banyan_document::kind::name(&value);
        let text = format!(
            "BSON field '{}.{name}' is the wrong type '{found}', expected type '{expected}'",
            request.name
        );
        CommandError::new(ErrorCode::TypeMismatch, text)
    };
    let whole = |name: &str, value: RawBsonRef<'_>| {
        let number = fields::number(value).ok_or_else(|| wrong(name, value, "int"))?;
        i32::try_from(number).map_err(|_| {
            let text = format!("'{}.{name}' does not fit an int: {number}", request.name);
            CommandError::new(ErrorCode::BadValue, text)
        })
    };
    let first = given("stmtId").map(|id| whole("stmtId", id)).transpose()?;
    let Some(listed) = given("stmtIds") else {
        let first = i64::from(first.unwrap_or(0));
        return Ok((first..).take(count).map(|id| id as i32).collect());
    };
    let RawBsonRef::Array(listed) = listed else {
        return Err(wrong("stmtIds", listed, "array"));
    };
    let ids = listed.into_iter().flatten().map(|id| whole("stmtIds", id));
    let ids: Vec<i32> = ids.collect::<Result<_, _>>()?;
    if ids.len() != count {
        return Err(CommandError::new(
            ErrorCode::InvalidLength,
            format!(
                "Number of statement ids must match the number of batch entries. Got {} statement \
                 ids but {count} operations.",
                ids.len()
            ),
        ));
    }
    match first {
        None => Ok(ids),
        Some(_) => Err(CommandError::new(
            ErrorCode::InvalidOptions,
            "May not specify both stmtId and stmtIds in write command.",
        )),
    }
}

/// Which statement of the whole batch an entry of a child's reply speaks of.
fn own_index(child: &Child, entry: &RawDocument) -> Option<usize> {
    let index = usize::try_from(fields::get_number(entry, "index")?).ok()?;
    child.indexes.get(index).copied()
}

/// Runs a batch to its end.
pub async fn run(context: &Context<'_>, kind: Kind) -> Result<RawDocumentBuf, CommandError> {
    let ns = context.namespace()?;
    let router = context.router;
    let mut batch = Batch::new(context, kind)?;
    let create = batch.may_create();
    let mut retries = StaleRetries::new();
    // What a part of the batch did is counted here, so from then on no shard's reply is the whole.
    let mut counted = false;
    loop {
        let route = match create {
            true => Some(router.catalog.route_or_create(&ns).await?),
            false => router.catalog.route(&ns).await?,
        };
        // A database that isn't there holds nothing to change.
        let Some(route) = route else {
            return Ok(batch.reply());
        };
        let untouched = batch.left.len() == batch.statements.len() && batch.ran.is_empty();
        let stale = match batch.only_shard(&route).filter(|_| untouched && !counted) {
            Some(shard) => {
                let whole = Child {
                    shard,
                    indexes: batch.left.clone(),
                    limits: None,
                };
                match forward_whole(context, &route, &whole, &mut batch).await? {
                    Ok(reply) => return Ok(reply),
                    Err(stale) => Some(stale),
                }
            }
            None => {
                counted = true;
                batch.run(&route).await?
            }
        };
        match stale {
            None => return Ok(batch.reply()),
            Some(error) if retries.is_left() => {
                router.recover(Some(&route), &error).await?;
                retries.pause().await;
            }
            Some(error) => return Err(error),
        }
    }
}

/// Passes the batch on as it came; `Err` says that the route is stale, and what ran has been
/// counted.
async fn forward_whole(
    context: &Context<'_>,
    route: &Arc<Route>,
    whole: &Child,
    batch: &mut Batch<'_>,
) -> Result<Result<RawDocumentBuf, CommandError>, CommandError> {
    let forwarded = forward_write(context, route, &whole.shard).await;
    let reply = match forwarded {
        Ok(answer) => answer.reply,
        Err(error) if error.code.is_stale_routing() => return Ok(Err(error)),
        Err(error) => return Err(error),
    };
    let is_stale = |entry: &RawDocument| {
        let code = fields::get_number(entry, "code").unwrap_or(0) as i32;
        ErrorCode::from_code(code).is_stale_routing()
    };
    if !fields::documents(&reply, "writeErrors").any(is_stale) {
        return Ok(Ok(reply));
    }
    match batch.take_reply(route, whole, &reply) {
        Sent::Stale(error) => {
            let (ran, errors) = (&batch.ran, &batch.outcome.errors);
            batch
                .left
                .retain(|index| !ran.contains_key(index) && !errors.contains_key(index));
            Ok(Err(error))
        }
        Sent::Ran => Ok(Ok(reply)),
    }
}
