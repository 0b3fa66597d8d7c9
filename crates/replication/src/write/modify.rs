//! Updates and deletes: finding the records, latching them, staging their changes.
//!
//! A record is chosen from one snapshot, latched, and read again from a snapshot taken after that,
//! unless nobody else has committed anything in between: only what still matches then is changed. A
//! scan of an index goes on in the view it began in, so that a record that an update moves within the
//! index is met once. One of the collection, where no record moves, goes on in the state that each
//! of the statement's own entries leaves.

use std::sync::Arc;

use banyan_execution::{by_id, tickets};
use banyan_query::Context;
use banyan_query::canonical::{CanonicalQuery, Order, TextScore};
use banyan_query::filter::{ArrayPosition, Filter};
use banyan_query::pipeline::NearFields;
use banyan_query::sort::SORT_KEY_FIELD;
use banyan_query::text::{SearchedIndex, TextContext};
use banyan_query::update::{Update, UpdateContext};
use banyan_storage::{Collection, Index, Record, RecordId, Snapshot};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};

use super::insert::{KeyedDocument, Staged};
use super::rewrite::{Outcome, Rewrite};
use super::staging::Staging;
use super::unique::check_unique;
use crate::entry::Style;
use crate::errors;
use crate::latches::{Attempt, LatchKey};
use crate::machine::effects;
use crate::op_observer::Change;
use banyan_execution::{Executor, LaterStates, Planned, ReadView, Request, Row};

/// Which records a statement is about.
pub struct Target<'a> {
    pub filter: Arc<Filter>,
    pub hint: Option<RawBsonRef<'a>>,
    /// The index that is hinted at may be a hidden one.
    pub hidden_too: bool,
    pub sort: Option<&'a RawDocument>,
    pub multi: bool,
    /// So many at most, if they are several.
    pub most: Option<u64>,
    /// Whether the last record's documents are asked for.
    pub keep_documents: bool,
}

/// What a statement does to a record.
pub enum Action<'a> {
    Update(&'a Update, UpdateContext),
    Delete,
    /// Records that hold several things.
    Rewrite(&'a dyn Rewrite),
}

/// What a statement has done.
#[derive(Debug, Default)]
pub struct Effect {
    pub matched: u64,
    pub modified: u64,
    /// Of the last record.
    pub before: Option<RawDocumentBuf>,
    pub after: Option<RawDocumentBuf>,
}

/// A record that was latched and still matches.
struct Found {
    record: RecordId,
    document: Record,
    position: Option<ArrayPosition>,
}

enum StatementState {
    Done,
    Busy(LatchKey),
}

impl<'a> Target<'a> {
    /// The `_id`, if the filter asks for one and nothing else, and the index on it compares strings
    /// as the filter does.
    fn id(&self, collection: &Collection) -> Option<RawBsonRef<'_>> {
        let id = self.filter.id_equality().filter(|_| self.hint.is_none())?;
        let index = collection.id_index()?;
        by_id::serves(index, id, self.filter.collator()).then_some(id)
    }

    fn matches(&self, document: &RawDocument) -> Result<bool, CommandError> {
        self.filter.try_matches(document).map_err(errors::query)
    }

    fn is_by_id(&self, collection: &Collection) -> bool {
        self.id(collection).is_some()
    }
}

/// Runs a statement over what it targets.
pub async fn run(
    staging: &mut Staging<'_>,
    target: &Target<'_>,
    action: &Action<'_>,
) -> Result<Effect, CommandError> {
    let mut effect = Effect::default();
    let Some(collection) = staging.collection.clone() else {
        return Ok(effect);
    };
    staging.begin_statement();
    if target.multi && !target.is_by_id(&collection) {
        let done = many(staging, &collection, target, action, &mut effect).await;
        // The next statement reads what this one has changed.
        let applied = staging.wait_until_applied().await;
        return done.and(applied).map(|()| effect);
    }
    loop {
        match one(staging, &collection, target, action, &mut effect).await? {
            StatementState::Busy(latch) => staging.wait_for(latch).await?,
            StatementState::Done => return Ok(effect),
        }
    }
}

/// The order of a statement's records, and whether it is that of a search's scores.
fn order(target: &Target<'_>) -> Result<(Order, TextScore), CommandError> {
    let collator = target.filter.collator();
    if target.sort.is_none() || !target.filter.searches() {
        let order = Order::parse(target.sort, collator).map_err(errors::query)?;
        return Ok((order, TextScore::Unused));
    }
    let text = TextContext::new(SearchedIndex::Elsewhere);
    let context = Context {
        collator: collator.cloned(),
        text: Some(text.clone()),
        ..Context::default()
    };
    let order = Order::parse_in(target.sort, &context).map_err(errors::query)?;
    match text.is_asked() {
        true => Ok((order, TextScore::Used)),
        false => Ok((order, TextScore::Unused)),
    }
}

/// The plan, over what the statement reads.
fn plan<'a>(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    target: &'a Target<'_>,
) -> Result<Planned<'a>, CommandError> {
    plan_for(staging, collection, target, Purpose::Change)
}

/// What becomes of the documents that a plan finds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Change,
    /// A router compares them with those of other shards.
    Compare,
}

fn plan_for<'a>(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    target: &'a Target<'_>,
    purpose: Purpose,
) -> Result<Planned<'a>, CommandError> {
    let wanted = (!target.multi).then_some(1);
    let (order, text_score) = order(target)?;
    let query = CanonicalQuery {
        order,
        text_score,
        limit: target.sort.and(wanted),
        ..CanonicalQuery::of_filter(target.filter.clone())
    };
    let compares = purpose == Purpose::Compare;
    let merge_order = compares.then(|| query.merge_order()).flatten();
    let by_distance = merge_order.is_some() && query.filter.near().is_some();
    let request = Request {
        query: Arc::new(query),
        merge_order,
        near: by_distance.then(|| Arc::new(NearFields::for_router())),
        hint: target.hint,
        hidden_too: target.hidden_too,
        wanted,
        shard_filter: staging.ownership.clone(),
        ..Request::default()
    };
    let later = || LaterStates::newest(staging.ctx.replica.store.clone());
    let view = ReadView {
        collection: Some(staging.unit.viewed(collection)?),
        later: staging.unit.commits_in_parts().then(later),
        snapshot: staging.unit.read_view(),
    };
    let planned = Planned::new(view, request).map_err(errors::query)?;
    if !planned.is_small() {
        staging.ctx.operation.interrupt();
    }
    Ok(planned)
}

/// Begins to run a plan.
fn open(staging: &Staging<'_>, planned: Planned<'_>) -> Result<Executor, CommandError> {
    let executor = planned
        .open(staging.ctx.operation.slot())
        .map_err(errors::query)?;
    staging.ctx.operation.run_plan(&executor.stats);
    let sorts = u64::from(executor.has_blocking_sort());
    staging.ctx.work.sorts.add(sorts);
    Ok(executor)
}

/// Changes the first record that matches, if there is one.
async fn one(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    target: &Target<'_>,
    action: &Action<'_>,
    effect: &mut Effect,
) -> Result<StatementState, CommandError> {
    let only = staging.routed.and_then(|routed| routed.only());
    if let (Some(id), Some(index)) = (only, collection.id_index()) {
        let ctx = staging.ctx;
        let change = || one_by_id(staging, collection, index, id, target, action, effect);
        return ctx.compute(change).await;
    }
    if let (Some(id), Some(index)) = (target.id(collection), collection.id_index()) {
        return one_by_id(staging, collection, index, id, target, action, effect);
    }
    let ctx = staging.ctx;
    let planned = plan(staging, collection, target)?;
    let is_small = planned.is_small();
    let mut planned = Some(planned);
    let mut work = || loop {
        let planned = match planned.take() {
            Some(planned) => planned,
            None => plan(staging, collection, target)?,
        };
        let mut executor = open(staging, planned)?;
        let mut missed = false;
        while let Some((record, row)) = executor.next_record().map_err(errors::query)? {
            let read = executor.view().map(|view| (row, view));
            match latch_and_match(staging, collection, target, action, &record, read)? {
                Latched::Busy(latch) => return Ok(StatementState::Busy(latch)),
                Latched::Gone => {
                    // The same record would be found, and not match, again and again.
                    missed |= match executor.view() {
                        Some(view) => has_changed(staging, collection, &record, view)?,
                        None => true,
                    };
                }
                Latched::Found(found) => {
                    return change(staging, collection, target, action, found, effect);
                }
            }
        }
        // A sort has kept the first only. If that was changed meanwhile, another one is the first.
        if target.sort.is_none() || !missed {
            return Ok(StatementState::Done);
        }
        staging.ctx.check_interrupt()?;
    };
    if is_small {
        work()
    } else {
        ctx.compute(work).await
    }
}

/// Whether a record is another one than a view shows, or belongs to another shard by now.
fn has_changed(
    staging: &mut Staging<'_>,
    collection: &Collection,
    record: &RecordId,
    view: &Snapshot,
) -> Result<bool, CommandError> {
    let shown = view.record(collection.id, record);
    let shown = shown.map_err(errors::storage)?;
    let Some(present) = staging.unit.present_record(collection.id, record)? else {
        return Ok(true);
    };
    let is_same = shown.is_some_and(|shown| shown.as_bytes() == present.as_bytes());
    Ok(!is_same || !staging.owns(&present))
}

/// The document that a statement would change: its `_id`, and what it is compared by with those of
/// other shards if the statement has an order.
pub(super) async fn look(
    staging: &mut Staging<'_>,
    target: &Target<'_>,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let Some(collection) = staging.collection.clone() else {
        return Ok(None);
    };
    staging.begin_statement();
    let ctx = staging.ctx;
    let planned = plan_for(staging, &collection, target, Purpose::Compare)?;
    let work = || {
        let mut executor = open(staging, planned)?;
        let found = executor.next_record().map_err(errors::query)?;
        Ok(found.map(|(_, row)| {
            let mut candidate = RawDocumentBuf::new();
            if let Some(id) = banyan_document::field(&row, "_id") {
                candidate.append(cstr!("_id"), id);
            }
            // It stands behind the document's own fields, whatever they are called.
            let last = banyan_document::elements(&row).last();
            if let Some(order) = last.filter(|last| last.name() == SORT_KEY_FIELD.as_str()) {
                candidate.append(SORT_KEY_FIELD, order.value());
            }
            candidate
        }))
    };
    ctx.compute(work).await
}

/// Changes the record with an `_id`, which no plan is needed to find.
fn one_by_id(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    id_index: &Index,
    id: RawBsonRef<'_>,
    target: &Target<'_>,
    action: &Action<'_>,
    effect: &mut Effect,
) -> Result<StatementState, CommandError> {
    let snapshot = staging.unit.read_view();
    let found = snapshot
        .unique_lookup(id_index, &by_id::key(id_index, id))
        .map_err(errors::storage)?;
    staging.ctx.work.found_by_id(found.is_some());
    id_index.note_use();
    let Some(record) = found else {
        return Ok(StatementState::Done);
    };
    match latch_and_match(staging, collection, target, action, &record, None)? {
        Latched::Busy(latch) => Ok(StatementState::Busy(latch)),
        Latched::Gone => Ok(StatementState::Done),
        Latched::Found(found) => change(staging, collection, target, action, found, effect),
    }
}

enum Latched {
    Found(Found),
    /// It does not match (any more).
    Gone,
    Busy(LatchKey),
}

/// `read`: what the plan has found, and where.
fn latch_and_match(
    staging: &mut Staging<'_>,
    collection: &Collection,
    target: &Target<'_>,
    action: &Action<'_>,
    record: &RecordId,
    read: Option<(Row, &Snapshot)>,
) -> Result<Latched, CommandError> {
    let latch = staging.ctx.replica.latches.record(collection.id, record);
    if staging.unit.try_latch(latch) == Attempt::Busy {
        staging.unit.unlatch();
        return Ok(Latched::Busy(latch));
    }
    staging.unit.check_record(collection.id, record)?;
    let matching = match read {
        // The plan has matched it, in the state of now.
        Some((Row::Record(document), view)) if staging.unit.is_present_but_for_own(view) => {
            Some(document)
        }
        _ => matching_now(staging, collection, target, record)?,
    };
    if let Some(document) = matching {
        let position = match action {
            Action::Update(update, _) if update.needs_position() => {
                let found = target.filter.matches_with_position(&document);
                found.map_err(errors::query)?
            }
            _ => None,
        };
        return Ok(Latched::Found(Found {
            record: record.clone(),
            document,
            position,
        }));
    }
    staging.unit.unlatch();
    Ok(Latched::Gone)
}

/// The latched record, if it matches.
fn matching_now(
    staging: &mut Staging<'_>,
    collection: &Collection,
    target: &Target<'_>,
    record: &RecordId,
) -> Result<Option<Record>, CommandError> {
    let Some(document) = staging.unit.present_record(collection.id, record)? else {
        return Ok(None);
    };
    // A record keeps its `_id`.
    let matches =
        staging.owns(&document) && (target.is_by_id(collection) || target.matches(&document)?);
    Ok(matches.then_some(document))
}

/// Stages what the action makes of a record.
fn change(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    target: &Target<'_>,
    action: &Action<'_>,
    found: Found,
    effect: &mut Effect,
) -> Result<StatementState, CommandError> {
    let before: &RawDocument = &found.document;
    match action {
        Action::Delete => {
            delete(staging, collection, &found.record, before)?;
            staging.ctx.work.deleted.add(1);
            effect.modified += 1;
        }
        Action::Rewrite(rewrite) => {
            let rewritten = rewrite.rewrite(before)?;
            match rewritten.record {
                Outcome::Same => {
                    staging.unit.unlatch();
                    effect.matched += rewritten.matched;
                    return Ok(StatementState::Done);
                }
                Outcome::Gone => delete(staging, collection, &found.record, before)?,
                Outcome::Becomes(after) => {
                    let style = Style::Modifiers { wholes: Vec::new() };
                    let record = &found.record;
                    if let Some(latch) =
                        replace(staging, collection, record, before, &after, &style)?
                    {
                        return Ok(StatementState::Busy(latch));
                    }
                }
            }
            effect.matched += rewritten.matched;
            effect.modified += rewritten.matched;
            staging.unit.claim();
            return Ok(StatementState::Done);
        }
        Action::Update(update, context) => {
            let context = context.clone().at(found.position);
            if let Some(after) = update.apply(before, &context).map_err(errors::query)? {
                if target.multi {
                    staging.check_shared_change(before, &after)?;
                }
                let style = Style::of(update);
                if let Some(latch) =
                    replace(staging, collection, &found.record, before, &after, &style)?
                {
                    return Ok(StatementState::Busy(latch));
                }
                staging.ctx.work.modified.add(1);
                effect.modified += 1;
                effect.after = target.keep_documents.then_some(after);
            } else {
                effect.after = target.keep_documents.then(|| before.to_owned());
            }
        }
    }
    if matches!(action, Action::Update(..)) {
        staging.ctx.work.matched.add(1);
    }
    effect.matched += 1;
    effect.before = target.keep_documents.then(|| before.to_owned());
    staging.unit.claim();
    Ok(StatementState::Done)
}

/// Stages the removal of a record.
fn delete(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    record: &RecordId,
    before: &RawDocument,
) -> Result<(), CommandError> {
    staging.check_change(Change::Delete { before })?;
    staging.pass_fail_point()?;
    let unit = &mut staging.unit;
    effects::delete(&mut unit.batch, collection, record, before)
        .map_err(|error| errors::no_keys(error, before))?;
    unit.entry.delete(collection.id, record, before);
    unit.note_deleted(collection.id);
    Ok(())
}

/// Stages a later state; the latch that it has to wait for first, if a unique key is taken.
pub(super) fn replace(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    record: &RecordId,
    before: &RawDocument,
    after: &RawDocument,
    style: &Style<'_>,
) -> Result<Option<LatchKey>, CommandError> {
    staging.check_document(Some(before), after)?;
    let mut changes = Vec::new();
    for index in effects::changed_indexes(collection, before, after) {
        let keys_of = |document| {
            let keys = effects::keys_of(index, document);
            keys.map_err(|error| errors::no_keys(error, document))
        };
        let (old, new) = (keys_of(before)?, keys_of(after)?);
        if old != new {
            changes.push((index, old, new));
        }
    }
    let mut unique = Vec::new();
    let mut meets_staged = false;
    for (index, old, new) in changes
        .iter()
        .filter(|(index, ..)| index.refuses_duplicates())
    {
        for key in old.keys.iter().chain(&new.keys) {
            let latch = staging.ctx.replica.latches.unique_key(index.id, key);
            match staging.unit.try_latch(latch) {
                Attempt::Taken => {}
                Attempt::Own => meets_staged = true,
                Attempt::Busy => {
                    staging.unit.unlatch();
                    return Ok(Some(latch));
                }
            }
        }
        // Another record may have a key that this one has had before, unless the index is unique.
        let added = new.keys.iter().filter(|key| old.get(key).is_none());
        unique.push((*index, added.cloned().collect::<Vec<_>>()));
    }
    if !unique.is_empty() {
        let unit = &mut staging.unit;
        let snapshot = match meets_staged {
            true => unit.present_with_own(),
            false => unit.present(),
        };
        for (index, added) in unique {
            check_unique(
                unit,
                collection,
                index,
                &snapshot,
                after,
                &added,
                Some(record),
            )?;
        }
    }
    staging.check_change(Change::Update { before, after })?;
    staging.pass_fail_point()?;
    let unit = &mut staging.unit;
    unit.batch.replace_record(collection, record, before, after);
    for (index, old, new) in &changes {
        effects::change_keys(&mut unit.batch, collection, index, record, old, new);
    }
    let (was, is) = (Some(before), Some(after));
    effects::write_building(&mut unit.batch, collection, record, was, is);
    unit.entry
        .update(collection.id, record, before, after, style);
    Ok(None)
}

/// Changes every record that matches, in entries of bounded size.
async fn many(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    target: &Target<'_>,
    action: &Action<'_>,
    effect: &mut Effect,
) -> Result<(), CommandError> {
    let ctx = staging.ctx;
    let planned = plan(staging, collection, target)?;
    let mut executor = ctx.compute(|| open(staging, planned)).await?;
    let mut retry: Option<RecordId> = None;
    loop {
        let work = || {
            some(
                staging,
                collection,
                target,
                action,
                effect,
                &mut executor,
                &mut retry,
            )
        };
        match ctx.compute(work).await? {
            Stretch::Busy(record, latch) => {
                staging.wait_for(latch).await?;
                retry = Some(record);
            }
            Stretch::Full if !collection.is_capped => {
                // What follows is of other records, and of other unique keys: those are latched until
                // this is applied.
                staging.flush_beside().await?;
                go_on(staging, collection, &mut executor)?;
            }
            Stretch::Full | Stretch::Turn => {
                staging.flush().await?;
                go_on(staging, collection, &mut executor)?;
            }
            Stretch::End => return Ok(()),
        }
    }
}

/// Behind a commit: on to the state that it leaves, or the one before it.
fn go_on(
    staging: &Staging<'_>,
    collection: &Collection,
    executor: &mut Executor,
) -> Result<(), CommandError> {
    staging.ctx.check_interrupt()?;
    // Elsewhere it may meet again what it has changed and moved. In a capped collection it would not
    // go on from a record that it has removed.
    if executor.scans_collection() && !collection.is_capped {
        executor.save();
    }
    Ok(())
}

/// Why changing record after record pauses.
enum Stretch {
    Busy(RecordId, LatchKey),
    /// What is staged fills an entry.
    Full,
    /// Others want to compute, and perhaps to change what is latched here: what is staged is to be
    /// committed.
    Turn,
    End,
}

/// Changes records for as long as that can go on at once.
fn some(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    target: &Target<'_>,
    action: &Action<'_>,
    effect: &mut Effect,
    executor: &mut Executor,
    retry: &mut Option<RecordId>,
) -> Result<Stretch, CommandError> {
    loop {
        if target.most.is_some_and(|most| effect.matched >= most) {
            return Ok(Stretch::End);
        }
        let holds = !staging.unit.is_clear() && staging.unit.commits_in_parts();
        tickets::hurry(holds);
        if staging.unit.is_full() {
            return Ok(Stretch::Full);
        }
        if holds && tickets::turn_is_over() {
            return Ok(Stretch::Turn);
        }
        let (record, read) = match retry.take() {
            Some(record) => (record, None),
            None => match executor.next_record().map_err(errors::query)? {
                Some((record, row)) => (record, executor.view().map(|view| (row, view))),
                None => return Ok(Stretch::End),
            },
        };
        match latch_and_match(staging, collection, target, action, &record, read)? {
            Latched::Busy(latch) => return Ok(Stretch::Busy(record, latch)),
            Latched::Gone => {}
            Latched::Found(found) => {
                if let StatementState::Busy(latch) =
                    change(staging, collection, target, action, found, effect)?
                {
                    return Ok(Stretch::Busy(record, latch));
                }
            }
        }
    }
}

/// Inserts what an upsert makes when nothing matched. `None`: something matches by now, or a latch
/// had to be waited for; look again.
pub async fn upsert(
    staging: &mut Staging<'_>,
    target: &Target<'_>,
    update: &Update,
    context: &UpdateContext,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let Some(collection) = staging.collection.clone() else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            "the collection is gone",
        ));
    };
    let document = update
        .upsert_document(&target.filter, context)
        .map_err(errors::query)?;
    check_place(staging, &document)?;
    let mut keyed = KeyedDocument::new(&collection, &document)?;
    if let Err(latch) = keyed.latch(staging, &collection) {
        staging.wait_for(latch).await?;
        return Ok(None);
    }
    let present = staging.unit.present();
    match keyed.stage(staging, &collection, &present) {
        Ok(Staged::Done) => {
            staging.ctx.work.upserted.add(1);
            Ok(Some(keyed.document.clone().into_owned()))
        }
        Ok(Staged::Busy(latch)) => {
            staging.wait_for(latch).await?;
            Ok(None)
        }
        Ok(Staged::Later) => {
            staging.flush().await?;
            Ok(None)
        }
        Err(error)
            if error.code == ErrorCode::DuplicateKey
                && matches_now(staging, &collection, target)? =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Refuses what an upsert makes for another shard: it came to this one by its filter, and the update may
/// say something else of the shard key.
fn check_place(staging: &Staging<'_>, document: &RawDocument) -> Result<(), CommandError> {
    staging.check_change(Change::Insert { document })?;
    match staging.owns(document) {
        true => Ok(()),
        false => Err(CommandError::new(
            ErrorCode::WouldChangeOwningShard,
            "the shard key of the upsert's document belongs to another shard",
        )),
    }
}

/// Whether another writer has just made what the upsert was looking for.
fn matches_now(
    staging: &mut Staging<'_>,
    collection: &Arc<Collection>,
    target: &Target<'_>,
) -> Result<bool, CommandError> {
    let planned = plan(staging, collection, target)?;
    let mut executor = open(staging, planned)?;
    let found = executor.next_record().map_err(errors::query)?;
    Ok(found.is_some())
}
