//! Plays generated scenes on both servers until one answers differently, and then makes that small.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use bson::{Document, doc};

use crate::case::{Case, Scene};
use crate::compare::{Difference, Told, compare};
use crate::generate;
use crate::known::{Known, Witness};
use crate::order;
use crate::proof::Faults;
use crate::shrink::shrink;
use crate::side::Side;

/// Cases of one class that are shrunk; the rest is counted.
const SHRUNK_PER_CLASS: usize = 300;

pub struct Hunt {
    pub seed: u64,
    pub first: u64,
    pub operations: usize,
    pub known: Known,
    pub only: Only,
    /// Prints the cases as they are found: those that a proof has taken in, and those that are new.
    pub is_verbose: bool,
    next: AtomicU64,
    done: AtomicUsize,
    found: Mutex<Found>,
}

/// Which of the generated commands are played; all of them if nothing is named.
#[derive(Clone, Debug, Default)]
pub struct Only {
    pub commands: Vec<String>,
    pub stories: Option<bool>,
    pub ordered: bool,
}

impl Only {
    fn scene(&self, scene: &Scene) -> bool {
        self.stories.is_none_or(|wanted| wanted == scene.is_story)
            && (scene.is_ordered || !self.ordered)
    }

    fn command(&self, command: &Document) -> bool {
        let name = command.keys().next();
        self.commands.is_empty() || name.is_some_and(|name| self.commands.contains(name))
    }
}

#[derive(Default)]
struct Found {
    /// By class and operators: how many, and the first.
    classes: BTreeMap<(String, String), (usize, Finding)>,
    shrunk: BTreeMap<String, usize>,
    uncounted: BTreeMap<String, usize>,
}

/// What was found, as small as it became.
#[derive(Clone, Debug)]
pub struct Finding {
    pub number: u64,
    pub case: Case,
    pub difference: Difference,
}

/// Where a worker sends its cases.
pub struct Bench {
    pub banyan: Side,
    pub reference: Option<Side>,
    pub router: Option<Side>,
    pub many: Option<Many>,
}

/// Banyan and the reference, with so many documents that the first shares its work.
pub struct Many {
    pub banyan: Side,
    pub reference: Side,
}

/// What an answer is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Banyan with the reference.
    Reference,
    /// Banyan with indexes with Banyan without.
    Indexes,
    /// The same, told which of the indexes to use.
    Hint,
    /// Banyan's router over two shards with one node.
    Router,
    /// Banyan with the reference, with many documents.
    Many,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::Reference => "",
            Check::Indexes => "with indexes: ",
            Check::Hint => "with a hint: ",
            Check::Router => "through a router: ",
            Check::Many => "with many documents: ",
        }
    }
}

impl Hunt {
    pub fn new(seed: u64, first: u64, operations: usize, known: Known, only: Only) -> Self {
        Self {
            seed,
            first,
            operations,
            known,
            only,
            is_verbose: false,
            next: AtomicU64::new(first),
            done: AtomicUsize::new(0),
            found: Mutex::default(),
        }
    }

    /// A worker: plays scenes until there were enough operations.
    pub fn work(&self, bench: &mut Bench, revive: &dyn Fn(&mut Bench) -> Result<()>) -> Result<()> {
        while self.done.load(Ordering::Relaxed) < self.operations {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            self.play(number, &generate::scene(self.seed, number), bench, revive)?;
        }
        Ok(())
    }

    fn play(
        &self,
        number: u64,
        scene: &Scene,
        bench: &mut Bench,
        revive: &dyn Fn(&mut Bench) -> Result<()>,
    ) -> Result<()> {
        let checks = [
            Check::Reference,
            Check::Indexes,
            Check::Hint,
            Check::Router,
            Check::Many,
        ];
        let checks = &checks[..if scene.is_story { 1 } else { checks.len() }];
        if !self.only.scene(scene) {
            return Ok(());
        }
        for at in 0..scene.commands.len() {
            let case = scene.case(at);
            if !self.only.command(&case.command) {
                continue;
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            for &check in checks {
                let Some(difference) = bench.check(check, &case) else {
                    continue;
                };
                let gone = is_gone(&difference);
                self.judge(number, case.clone(), check, difference, bench);
                if gone {
                    revive(bench)?;
                }
            }
        }
        Ok(())
    }

    fn judge(&self, number: u64, case: Case, check: Check, first: Difference, bench: &mut Bench) {
        let named = |mut difference: Difference| {
            difference.class.insert_str(0, check.name());
            difference
        };
        let difference = named(first.clone());
        // An error code says what it is; of a value only a small case does.
        let says_itself =
            first.class.contains("code ") || first.class == "order of fields" || is_gone(&first);
        if says_itself && self.known.absorb(&case, &difference).is_some() {
            return;
        }
        let lock = || self.found.lock().expect("no worker panics with it");
        let gone = is_gone(&first);
        let enough = {
            let mut found = lock();
            let shrunk = found.shrunk.entry(difference.class.clone()).or_default();
            *shrunk += 1;
            *shrunk > SHRUNK_PER_CLASS
        };
        if enough {
            *lock().uncounted.entry(difference.class).or_default() += 1;
            return;
        }
        let small = match gone {
            true => case,
            false => shrink(&case, |smaller| {
                let difference = bench.check(check, smaller);
                difference.is_some_and(|difference| difference.class == first.class)
            }),
        };
        let difference = match gone {
            true => difference,
            false => bench.check(check, &small).map_or(difference, named),
        };
        if self.known.absorb(&small, &difference).is_some() {
            return;
        }
        if check == Check::Reference && !gone {
            let proven = self.known.absorb_proven(&small, &difference, bench);
            if proven.is_some() {
                if self.is_verbose {
                    println!(
                        "\n++ {} --case {number}\n{}",
                        difference.class,
                        small.shell_text()
                    );
                }
                return;
            }
        }
        if self.is_verbose {
            println!(
                "\n-- {} --case {number}\n{}",
                difference.class,
                small.shell_text()
            );
        }
        let key = (difference.class.clone(), operators(&small.command));
        let finding = Finding {
            number,
            case: small,
            difference,
        };
        lock().classes.entry(key).or_insert((0, finding)).0 += 1;
    }

    pub fn operations_done(&self) -> usize {
        self.done.load(Ordering::Relaxed)
    }

    /// What was found, and whether that was nothing.
    pub fn report(&self, started: Instant) -> (String, bool) {
        let found = self.found.lock().expect("no worker panics with it");
        let seconds = started.elapsed().as_secs_f64();
        let done = self.operations_done();
        let mut out = String::new();
        for ((class, operators), (count, finding)) in &found.classes {
            out.push_str(&format!(
                "\n== {class} [{operators}] {count} times; --seed {} --case {}\n{}\n\
                 // at {}\n// expected {}\n// found    {}\n",
                self.seed,
                finding.number,
                finding.case.shell_text(),
                finding.difference.path,
                short(&finding.difference.expected),
                short(&finding.difference.found),
            ));
        }
        for (class, count) in &found.uncounted {
            out.push_str(&format!("{count} more of {class}, not looked at\n"));
        }
        out.push_str("\nknown differences:\n");
        for (name, count) in self.known.counts() {
            out.push_str(&format!("{count:>7} {name}\n"));
        }
        let proven = self.known.proven();
        if !proven.is_empty() {
            out.push_str("\nby proof:\n");
        }
        for (class, count) in proven {
            out.push_str(&format!("{count:>7} {class}\n"));
        }
        out.push_str(&format!(
            "{done} operations in {seconds:.0} s ({:.0}/s), {} new differences\n",
            done as f64 / seconds,
            found.classes.len()
        ));
        (out, found.classes.is_empty())
    }
}

impl Bench {
    /// How Banyan answers the case differently with its indexes.
    pub fn by_indexes(&mut self, case: &Case) -> Option<Difference> {
        self.check(Check::Indexes, case)
    }

    /// The difference that this check finds, if it applies to the case.
    fn check(&mut self, check: Check, case: &Case) -> Option<Difference> {
        let order = order::of(&case.command);
        match check {
            Check::Reference => {
                let expected = self.reference.as_mut()?.tell(case, &[])?;
                compare(&expected, &self.banyan.tell(case, &[])?, order)
            }
            // The keys that a plan has read are not those of another.
            Check::Indexes | Check::Hint if case.command.contains_key("returnKey") => None,
            Check::Indexes => {
                let plain = self.banyan.tell(case, &[])?;
                same_without_types(plain, self.banyan.tell(case, &case.indexes)?, order)
            }
            Check::Hint => {
                let hinted = hinted(case)?;
                let plain = self.banyan.tell(case, &[])?;
                same_without_types(plain, self.banyan.tell(&hinted, &case.indexes)?, order)
            }
            Check::Router => {
                // A router explains what each of its shards does.
                if case
                    .command
                    .keys()
                    .next()
                    .is_some_and(|name| name == "explain")
                {
                    return None;
                }
                let router = self.router.as_mut()?;
                let plain = self.banyan.tell(case, &[])?;
                same_without_types(plain, router.tell(case, &[])?, order)
            }
            Check::Many => {
                let many = self.many.as_mut()?;
                let mut reference = self.reference.as_mut()?.tell(case, &[])?;
                let few = compare(&reference, &self.banyan.tell(case, &[])?, order);
                if few.is_some() || takes_any(&case.command) {
                    return None;
                }
                reference = many.reference.tell(case, &[])?;
                same_without_types(reference, many.banyan.tell(case, &[])?, order)
            }
        }
    }
}

impl Witness for Bench {
    fn faults(&mut self, case: &Case) -> Option<Faults> {
        let expected = self.reference.as_mut()?.tell(case, &[])?;
        let found = self.banyan.tell(case, &[])?;
        if !expected.is_reply() || !found.is_reply() {
            return None;
        }
        Some((expected.fault(), found.fault()))
    }

    fn finds_what_is_counted(&mut self, case: &Case) -> bool {
        let Some(find) = found_one_by_one(case) else {
            return false;
        };
        let Some(reference) = self.reference.as_mut() else {
            return false;
        };
        let (found, counted) = (reference.tell(&find, &[]), self.banyan.tell(case, &[]));
        let (Some(found), Some(counted)) = (found, counted) else {
            return false;
        };
        let documents = found.results().map(|documents| documents.len() as i64);
        documents.is_some() && documents == counted.number("n")
    }

    fn agrees(&mut self, case: &Case) -> bool {
        self.agrees_across(case, case)
    }

    fn agrees_across(&mut self, this: &Case, that: &Case) -> bool {
        if this.writes() {
            return false;
        }
        let order = order::of(&this.command);
        let mut agree = |expected: &Case, found: &Case| {
            let expected = self.reference.as_mut()?.tell(expected, &[])?;
            let found = self.banyan.tell(found, &[])?;
            Some(compare(&expected, &found, order).is_none())
        };
        agree(this, that) == Some(true) || this != that && agree(that, this) == Some(true)
    }
}

/// Whether the results are of some of the documents, whichever those are.
fn takes_any(command: &Document) -> bool {
    let text = crate::notation::print_document(command);
    ["$sample", "$rand"].iter().any(|name| text.contains(name))
}

/// A `find` of the documents that a `count` is of, which looks at each of them.
fn found_one_by_one(case: &Case) -> Option<Case> {
    let command = &case.command;
    let (name, collection) = command.iter().next()?;
    if name != "count" {
        return None;
    }
    let mut find = doc! { "find": collection.clone(), "hint": { "$natural": 1 } };
    for (option, value) in command.iter().skip(1) {
        match option.as_str() {
            "query" => find.insert("filter", value.clone()),
            "limit" | "skip" | "collation" => find.insert(option, value.clone()),
            _ => None,
        };
    }
    find.insert("projection", doc! { "_id": 1 });
    find.insert("batchSize", 10_000);
    Some(Case {
        command: find,
        ..case.clone()
    })
}

/// The case with a hint, if its first index has every document.
fn hinted(case: &Case) -> Option<Case> {
    let reads = ["find", "count", "aggregate"];
    let name = case.command.keys().next()?;
    let index = case.indexes.first()?;
    if !reads.contains(&name.as_str()) || index.len() > 1 {
        return None;
    }
    let mut hinted = case.clone();
    hinted
        .command
        .insert("hint", index.get_document("key").ok()?.clone());
    Some(hinted)
}

/// Whether a server gave no answer: it may have ended, or be busy for long.
fn is_gone(difference: &Difference) -> bool {
    let outcomes = ["hang", "connection closed", "the reference"];
    outcomes
        .iter()
        .any(|outcome| difference.class.starts_with(outcome))
}

/// Of equal numbers any may stand for all, and whether an error is met depends on what is read.
fn same_without_types(mut plain: Told, mut other: Told, order: order::Order) -> Option<Difference> {
    if other.is_reply() && (plain.is_error() || other.is_error()) {
        return None;
    }
    plain.unify_numbers();
    other.unify_numbers();
    compare(&plain, &other, order)
}

/// The operators, stages and options of a command, for putting like to like.
fn operators(command: &Document) -> String {
    let text = crate::notation::print_document(command);
    let mut names: Vec<String> = Vec::new();
    for part in text.split(['{', ' ']) {
        if let Some(name) = part.strip_suffix(':')
            && name.starts_with('$')
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
    }
    let command = command.keys().next().map_or("", String::as_str);
    names.sort();
    format!("{command} {}", names.join(" "))
}

fn short(text: &str) -> String {
    match text.char_indices().nth(400) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
